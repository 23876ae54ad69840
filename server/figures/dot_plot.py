"""Draws a comparison as a diverging dot plot: one row per variant and case, faster left and slower right. SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import exp, log

from warpwatch.db.reads.commits import ComparedRow
from warpwatch.server.figures.formats import change, plural

WIDTH, LEFT, RIGHT, ROW, AXIS = 1160.0, 420.0, 90.0, 20, 26
MOST_ROWS = 40
LEAST_SPAN = log(1.1)
"""Half the width of the axis at least, so that noise does not look like a cliff."""


def dot_plot_svg(rows: Sequence[ComparedRow]) -> str | None:
    """The first MOST_ROWS rows that have a ratio, in their order; None when none has."""
    shown = [row for row in rows if row.ratio][:MOST_ROWS]
    if not shown:
        return None
    reach = max(LEAST_SPAN, *(abs(log(row.ratio or 1.0)) for row in shown)) * 1.05
    middle, scale = (LEFT + WIDTH - RIGHT) / 2, (WIDTH - RIGHT - LEFT) / 2 / reach
    height = AXIS + ROW * len(shown) + 4
    parts = [f'<path class="grid zero" d="M{middle:.1f} {AXIS - 6}V{height}"/>']
    for share in (-1.0, -0.5, 0.0, 0.5, 1.0):
        x, ratio = middle + share * reach * scale, exp(share * reach)
        parts.append(f'<path class="grid" d="M{x:.1f} {AXIS - 6}V{height}"/>')
        text = change(ratio) if share else "no change"
        parts.append(f'<text x="{x:.1f}" y="12" text-anchor="middle">{text}</text>')
    parts += [_row(row, middle, scale, AXIS + index * ROW) for index, row in enumerate(shown)]
    slower = sum(row.separated and (row.ratio or 1) > 1 for row in rows)
    faster = sum(row.separated and (row.ratio or 1) < 1 for row in rows)
    label = f"{slower} slower and {faster} faster of {plural(len(rows), 'row')}; largest first: " + ", ".join(
        f"{row.operator} {row.right_variant} {row.case} {change(row.ratio)}" for row in shown[:3]
    )
    box = f'viewBox="0 0 {WIDTH:.0f} {height}" role="img" aria-label="{escape(label)}"'
    return f'<svg class="dots-plot" {box}>{"".join(parts)}</svg>'


def _row(row: ComparedRow, middle: float, scale: float, y: int) -> str:
    ratio = row.ratio or 1.0
    x, centre = middle + log(ratio) * scale, y + ROW / 2
    tone = ("worse" if ratio > 1 else "better") if row.separated else "same"
    name = f"{row.operator} {row.right_variant} {row.case}"
    cut = name if len(name) <= 62 else f"{name[:61]}…"
    return (
        f'<g class="{tone}"><title>{escape(name)}: {change(ratio)}</title>'
        f'<text x="0" y="{centre + 4:.0f}">{escape(cut)}</text>'
        f'<path d="M{middle:.1f} {centre:.1f}H{x:.1f}"/><circle cx="{x:.1f}" cy="{centre:.1f}" r="4.5"/>'
        f'<text class="amount" x="{WIDTH:.0f}" y="{centre + 4:.0f}" text-anchor="end">{change(ratio)}</text></g>'
    )
