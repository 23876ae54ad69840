"""Draws ratios with their intervals, one row each, faster left and slower right of 1, on a logarithmic axis. SVG.

A comparison of two commits is drawn so, and so are the cases of a regression. Each picture is drawn twice, with names
beside the dots and, for phones, above them; the style sheet shows one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import exp, log

from warpwatch.db.reads.commit_cells import CommitCell
from warpwatch.db.reads.commits import ComparedRow
from warpwatch.db.regressions import RegressionSeriesRow
from warpwatch.server.figures.formats import change, interval, plural

WIDE, HALF, NARROW = 1160.0, 620.0, 340.0
"""Widths of a picture across the page, of one in half of it, and of one on a phone."""
RIGHT, ROW, TWO_LINES, AXIS = 86.0, 20, 38, 26
MOST_ROWS = 40
LEAST_SPAN = log(1.1)
"""Half the width of the axis at least, so that noise does not look like a cliff."""
LETTER = 6.4
"""Width of a letter of the names, about."""


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One row of the plot. ratio: head over base, with its interval where one is known.

    is_sure: whether it lies beyond noise; other rows are grey.
    """

    name: str
    ratio: float
    low: float | None
    high: float | None
    is_sure: bool


def dot_plot_svg(rows: Sequence[ComparedRow]) -> str | None:
    """The first MOST_ROWS rows of a comparison that have a ratio, in their order; None when none has."""
    changes = [
        ChangeRow(f"{row.operator} {row.right_variant} {row.case}", ratio, low, high, row.is_changed)
        for row in rows
        for ratio, low, high in (
            (row.paired_ratio, row.paired_low, row.paired_high) if row.paired_ratio else (row.ratio, row.low, row.high),
        )
        if ratio
    ]
    slower = sum(row.is_sure and row.ratio > 1 for row in changes)
    faster = sum(row.is_sure and row.ratio < 1 for row in changes)
    label = f"{slower} slower and {faster} faster of {plural(len(rows), 'row')}"
    return _pictures(changes, label, WIDE, 0.36) if changes else None


def cases_svg(series: Sequence[RegressionSeriesRow]) -> str | None:
    """The cases of a regression that were measured; None when none was."""
    changes = [
        ChangeRow(f"{row.variant} {row.case}", row.ratio, row.low, row.high, row.verdict == "confirmed")
        for row in series
        if row.ratio
    ]
    label = f"A/B result of {plural(len(changes), 'case')}"
    return _pictures(changes, label, HALF, 0.44) if changes else None


def commit_svg(cells: Sequence[CommitCell]) -> str | None:
    """The changes that a commit has to do with, the largest first; None when none of them was measured."""
    changes = [
        ChangeRow(
            f"{cell.operator} {cell.variant} {cell.case}",
            ratio,
            cell.compared_low,
            cell.compared_high,
            cell.compared is not None,
        )
        for cell in cells
        if cell.is_changed and (ratio := cell.compared or cell.change)
    ]
    changes.sort(key=lambda row: -abs(log(row.ratio)))
    return _pictures(changes, f"Changes of {plural(len(changes), 'case')}", WIDE, 0.36) if changes else None


def _pictures(rows: Sequence[ChangeRow], label: str, width: float, named: float) -> str:
    return _plot(rows, label, width, named) + _plot(rows, label, NARROW, 0.0)


def _plot(rows: Sequence[ChangeRow], label: str, width: float, named: float) -> str:
    """named: the share of the width that the names take; 0 writes them above the dots."""
    shown, left, pitch = rows[:MOST_ROWS], width * named or 30.0, ROW if named else TWO_LINES
    ends = [abs(log(value)) for row in shown for value in (row.ratio, row.low, row.high) if value]
    reach = max(LEAST_SPAN, *ends) * 1.05
    middle, scale = (left + width - RIGHT) / 2, (width - RIGHT - left) / 2 / reach
    height = AXIS + pitch * len(shown) + 4
    parts = [f'<path class="grid zero" d="M{middle:.1f} {AXIS - 6}V{height}"/>']
    for share in (-1.0, -0.5, 0.0, 0.5, 1.0) if width == WIDE else (-1.0, 0.0, 1.0):
        x, ratio = middle + share * reach * scale, exp(share * reach)
        parts.append(f'<path class="grid" d="M{x:.1f} {AXIS - 6}V{height}"/>')
        text = change(ratio) if share else "no change"
        parts.append(f'<text x="{x:.1f}" y="12" text-anchor="middle">{text}</text>')
    letters = int((left if named else width) / LETTER) - 2
    for index, row in enumerate(shown):
        parts.append(_row(row, middle, scale, AXIS + index * pitch, width, letters, above=not named))
    text = f"{label}; first: " + ", ".join(f"{row.name} {change(row.ratio)}" for row in shown[:3])
    box = f'viewBox="0 0 {width:.0f} {height}" role="img" aria-label="{escape(text)}"'
    size = {WIDE: "", HALF: " half", NARROW: " narrow"}[width]
    return f'<svg class="dots-plot{size}" {box}>{"".join(parts)}</svg>'


def _row(row: ChangeRow, middle: float, scale: float, y: int, width: float, letters: int, *, above: bool) -> str:
    """above: the name has a line of its own."""
    x, centre = middle + log(row.ratio) * scale, y + ROW / 2 + (TWO_LINES - ROW if above else 0)
    tone = ("worse" if row.ratio > 1 else "better") if row.is_sure else "same"
    cut = row.name if len(row.name) <= letters else f"{row.name[: letters - 1]}…"
    whisker = ""
    if row.low and row.high:
        low, high = (middle + log(value) * scale for value in (row.low, row.high))
        whisker = (
            f'<path d="M{low:.1f} {centre - 4:.0f}v8M{low:.1f} {centre:.0f}H{high:.1f}M{high:.1f} {centre - 4:.0f}v8"/>'
        )
    title = f"{row.name}: {change(row.ratio)}" + (f" ({interval(row.low, row.high)})" if row.low and row.high else "")
    return (
        f'<g class="{tone}"><title>{escape(title)}</title>'
        f'<text x="0" y="{y + ROW / 2 + 4:.0f}">{escape(cut)}</text>'
        f'{whisker}<circle cx="{x:.1f}" cy="{centre:.1f}" r="4.5"/>'
        f'<text class="amount" x="{width:.0f}" y="{centre + 4:.0f}" text-anchor="end">{change(row.ratio)}</text></g>'
    )
