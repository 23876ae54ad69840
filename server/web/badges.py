"""Badges: the state of a branch as a small picture."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from html import escape
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from warpwatch.db.reads.badges import BadgeCounts, read_badge_counts
from warpwatch.db.reads.trades import count_costs
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Branch, Db, line_or_404, operator_or_404, repository_or_404
from warpwatch.server.reports.formats import plural
from warpwatch.server.verdicts.trades import LEFT

_HEIGHT, _PADDING, _PER_CHARACTER = 20, 6, 6.6
GOOD, BAD, WARNING, UNKNOWN = "#1a7f37", "#c0392b", "#9a6700", "#57606a"
"""White text on each has a contrast of at least 4.5."""


def badge(label: str, counts: BadgeCounts) -> str:
    """The badge of a repository or an operator."""
    return svg(label, *words(counts))


def words(counts: BadgeCounts) -> tuple[str, str]:
    """Text and colour of the badge; failures come first. Where something is suspected it is not called good."""
    failures = [(counts.wrong, "wrong"), (counts.failed, "failing"), (counts.slower, "slower")]
    texts = [f"{count} {name}" for count, name in failures if count]
    texts[-1:] = [f"{text} ({counts.launch} launch)" if counts.launch else text for text in texts[-1:]]
    rest = [f"{counts.suspected} suspected"] if counts.suspected else []
    rest += [plural(counts.costs, "cost")] if counts.costs else []
    if texts:
        return ", ".join(texts + rest), BAD if counts.wrong or counts.slower else WARNING
    if counts.suspected:
        return ", ".join([*([f"{counts.right} pass"] if counts.right else []), *rest]), WARNING
    return (", ".join([f"{counts.right} pass, none slower", *rest]), GOOD) if counts.right else ("not checked", UNKNOWN)


def svg(label: str, text: str, colour: str) -> str:
    """Two adjacent fields. Widths assume a common sans-serif font; wider fonts are squeezed to fit."""
    left, right = (round(2 * _PADDING + _PER_CHARACTER * len(part)) for part in (label, text))
    alternative = escape(f"{label}: {text}")

    def field(part: str, start: int, width: int) -> str:
        room = width - 2 * _PADDING
        place = f'x="{start + _PADDING}" y="14" textLength="{room}" lengthAdjust="spacingAndGlyphs"'
        return f"<text {place}>{escape(part)}</text>"

    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}" role="img" '
        f'aria-label="{alternative}">'
        f"<title>{alternative}</title>"
        f'<clipPath id="r"><rect width="{left + right}" height="{_HEIGHT}" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="{_HEIGHT}" fill="#3d444d"/>'
        f'<rect x="{left}" width="{right}" height="{_HEIGHT}" fill="{colour}"/></g>'
        f'<g fill="#fff" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11" aria-hidden="true">'
        f"{field(label, 0, left)}{field(text, left, right)}</g></svg>\n"
    )


api = APIRouter(tags=["reports"])
KEPT_SECONDS = 120
_SVG: dict[int | str, dict[str, Any]] = {
    200: {"description": "An SVG image.", "content": {"image/svg+xml": {"schema": {"type": "string"}}}},
    304: {"description": "Not modified."},
}
_MAX_LABEL = 60


@api.get("/badges/{repository}.svg", responses=documented(404, 422) | _SVG, response_class=Response)
def get_badge(
    request: Request,
    session: Db,
    repository: str,
    branch: Branch = None,
    operator: Annotated[str | None, Query(max_length=200, description="Default: all.")] = None,
) -> Response:
    """Passing and failing checks at the newest commits of a branch, open slow-downs, suspected changes and what
    commits cost beside the time, as an SVG image."""
    row = repository_or_404(session, repository)
    name = operator_or_404(session, row, operator).name if operator else None
    line = line_or_404(session, row, branch)
    costs = count_costs(session, row.id, line, LEFT, name)
    counts = replace(read_badge_counts(session, row.id, line, name), costs=costs)
    picture = badge((name or row.name)[:_MAX_LABEL], counts)
    tag = f'"{hashlib.sha256(picture.encode()).hexdigest()[:20]}"'
    headers = {"Cache-Control": f"max-age={KEPT_SECONDS}", "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(picture, headers=headers, media_type="image/svg+xml")
