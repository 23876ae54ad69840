"""Draws the shares of the roofline: a row per case, a mark per variant at its share of the ceiling. SVG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape

from warpwatch.db.reads.overview import OverviewCell
from warpwatch.server.figures.palette import VariantStyle
from warpwatch.server.figures.speedups import comparable, is_right
from warpwatch.server.reports.formats import duration, natural, plural, share, variant_order

WIDE, NARROW = 860.0, 340.0
"""Widths of the picture beside the list of cases, and of the one on a phone; the style sheet shows one."""
RIGHT, AXIS, ROW, TWO_LINES = 16.0, 24.0, 24.0, 42.0
NAMED = 0.34
"""Share of the width that the names take; on a phone they stand above their marks."""
MOST_ROWS = 40
"""Cases that are drawn; the table has all."""
LETTER = 6.4
"""Width of a letter of the names, about."""
ABOVE = 1.005
"""From here on a share reads as more than 100 %."""
STEPS = (0.0, 0.25, 0.5, 0.75, 1.0)


def ceiling_rows(cells: Sequence[OverviewCell], styles: Mapping[str, VariantStyle]) -> str | None:
    """The first MOST_ROWS cases with a share, in natural order; None where no cell has one. A share above 100 % stands
    at the right end, as an arrow. The time of a wrong result is left out."""
    rows = _shares(cells)
    if not rows:
        return None
    shown = [(case, rows[case]) for case in sorted(rows, key=natural)[:MOST_ROWS]]
    label = (
        f"Share of the ceiling, one row per case and one mark per variant, {plural(len(shown), 'case')}; "
        f"the highest is {highest_share(cells)}"
    )
    return _picture(shown, styles, label, WIDE, WIDE * NAMED) + _picture(shown, styles, label, NARROW, 8.0)


def highest_share(cells: Sequence[OverviewCell]) -> str:
    """The highest share among times that can be compared, with its variant and case; empty where no cell has one."""
    rivals = (cell for row in _shares(cells).values() for cell in comparable(row))
    best = max(rivals, key=lambda cell: cell.roofline_share or 0.0, default=None)
    return f"{share(best.roofline_share)}, by {best.variant} at {best.case}" if best is not None else ""


def _shares(cells: Sequence[OverviewCell]) -> dict[str, list[OverviewCell]]:
    """The cells of right results with a share, by case."""
    rows: dict[str, list[OverviewCell]] = defaultdict(list)
    for cell in cells:
        if cell.roofline_share is not None and is_right(cell):
            rows[cell.case].append(cell)
    return rows


def has_share_above_ceiling(cells: Sequence[OverviewCell]) -> bool:
    return any((cell.roofline_share or 0.0) >= ABOVE for cell in cells)


def _picture(
    rows: Sequence[tuple[str, list[OverviewCell]]],
    styles: Mapping[str, VariantStyle],
    label: str,
    width: float,
    left: float,
) -> str:
    is_wide = width == WIDE
    pitch = ROW if is_wide else TWO_LINES
    height = AXIS + pitch * len(rows) + 4
    parts = []
    for step in STEPS:
        x = left + step * (width - RIGHT - left)
        tone = "grid zero" if step == 1 else "grid"
        parts.append(f'<path class="{tone}" d="M{x:.0f} {AXIS - 6:.0f}V{height:.0f}"/>')
        # Half of the first label would lie outside of the narrow picture.
        anchor = "middle" if x > LETTER * 2 else "start"
        parts.append(f'<text x="{x:.0f}" y="12" text-anchor="{anchor}">{share(step)}</text>')
    letters = int((left if is_wide else width) / LETTER) - 2
    for index, (case, cells) in enumerate(rows):
        y = AXIS + index * pitch
        centre = y + ROW / 2 + (0 if is_wide else TWO_LINES - ROW)
        # The ends of the keys differ: the precision, and forward or backward.
        end = letters // 3
        cut = case if len(case) <= letters else f"{case[: letters - end - 1]}…{case[-end:]}"
        marks = [
            _mark(cell, styles[cell.variant], left, width - RIGHT, centre)
            # Coloured marks lie above grey ones.
            for cell in sorted(cells, key=lambda cell: (styles[cell.variant].is_lit, variant_order(cell.variant)))
        ]
        parts.append(
            f'<path class="row" d="M{left:.0f} {centre:.0f}H{width - RIGHT:.0f}"/>'
            f'<text x="0" y="{y + ROW / 2 + 4:.0f}">{escape(cut)}</text>{"".join(marks)}'
        )
    box = f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}"'
    return f'<svg class="ceiling-rows{"" if is_wide else " narrow"}" {box}>{"".join(parts)}</svg>'


def _mark(cell: OverviewCell, style: VariantStyle, left: float, right: float, y: float) -> str:
    ceiling_share = cell.roofline_share or 0.0
    x = left + min(ceiling_share, 1.0) * (right - left)
    text = f"{cell.variant}: {share(ceiling_share)} of the ceiling, {duration(cell.median_ns)}"
    return (
        f'<g class="variant" data-variant="{escape(cell.variant)}"><title>{escape(text)}</title>'
        f"{mark_svg(style, x, y, is_beyond=ceiling_share >= ABOVE)}</g>"
    )


def mark_svg(style: VariantStyle, x: float, y: float, *, is_beyond: bool = False) -> str:
    """The symbol of a variant. is_beyond: an arrow to the right instead."""
    shape, _, filling = style.symbol.partition("-")
    paint = f'fill="var(--surface)" stroke="{style.colour}" stroke-width="2"' if filling else f'fill="{style.colour}"'
    if is_beyond:
        return f'<path d="M{x - 3:.1f} {y - 5:.1f}l7 5l-7 5z" {paint} data-own="{style.own}"/>'
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {paint} data-own="{style.own}"/>'
    path = "l5.5 5.5l-5.5 5.5l-5.5-5.5z" if shape == "diamond" else "m-4.5 1h9v9h-9z"
    return f'<path d="M{x:.1f} {y - 5.5:.1f}{path}" {paint} data-own="{style.own}"/>'
