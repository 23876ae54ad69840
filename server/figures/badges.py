"""A badge: two fields of text as a small picture that screen readers can read. Pure."""

from __future__ import annotations

from html import escape

from warpwatch.db.reads.badges import BadgeCounts

_HEIGHT, _PADDING, _PER_CHARACTER = 20, 6, 6.6
GOOD, BAD, WARNING, UNKNOWN = "#1a7f37", "#c0392b", "#9a6700", "#57606a"
"""White text on each has a contrast of at least 4.5."""


def badge(label: str, standing: BadgeCounts) -> str:
    """The badge of a repository or an operator."""
    return svg(label, *words(standing))


def words(standing: BadgeCounts) -> tuple[str, str]:
    """What the badge says, and its colour: everything that is not right first."""
    troubles = [(standing.wrong, "wrong"), (standing.failed, "failing"), (standing.slower, "slower")]
    said = [f"{count} {name}" for count, name in troubles if count]
    if said:
        return ", ".join(said), BAD if standing.wrong or standing.slower else WARNING
    return (f"{standing.right} right, none slower", GOOD) if standing.right else ("not measured", UNKNOWN)


def svg(label: str, text: str, colour: str) -> str:
    """Two fields beside each other; widths are those of a usual sans-serif, squeezed to fit where it is wider."""
    left, right = (round(2 * _PADDING + _PER_CHARACTER * len(part)) for part in (label, text))
    said = escape(f"{label}: {text}")

    def field(part: str, start: int, width: int) -> str:
        room = width - 2 * _PADDING
        return f'<text x="{start + _PADDING}" y="14" textLength="{room}" lengthAdjust="spacingAndGlyphs">{escape(part)}</text>'

    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}" role="img" aria-label="{said}">'
        f"<title>{said}</title>"
        f'<clipPath id="r"><rect width="{left + right}" height="{_HEIGHT}" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="{_HEIGHT}" fill="#3d444d"/>'
        f'<rect x="{left}" width="{right}" height="{_HEIGHT}" fill="{colour}"/></g>'
        f'<g fill="#fff" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11" aria-hidden="true">'
        f"{field(label, 0, left)}{field(text, left, right)}</g></svg>\n"
    )
