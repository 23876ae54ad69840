"""Draws ratios with their intervals, one row each, faster left and slower right of 1, on a logarithmic axis. SVG.

A comparison of two commits is drawn so, and so are the cases of a regression. Each picture is drawn twice, with names
beside the dots and, for phones, above them; the style sheet shows one.

The axis reaches as far as the ratios do, which need not be equally far on both sides. Intervals do not stretch it much:
one that ends beyond it is cut off at an arrow, so that a single noisy case does not squeeze the others together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log

from warpwatch.contract.words import Signal, StatementDirection
from warpwatch.db.reads.commit_cells import CommitCell
from warpwatch.db.regressions import RegressionSeriesRow
from warpwatch.server.explanation.paired import StatedRow
from warpwatch.server.reports.formats import change, interval, plural
from warpwatch.server.reports.wording import statement_data, statement_tone
from warpwatch.server.verdicts.statements import NO_DATA, Statement, state_member

WIDE, HALF, NARROW = 1160.0, 620.0, 340.0
"""Widths of a picture across the page, of one in half of it, and of one on a phone."""
RIGHT, ROW, TWO_LINES, AXIS = 86.0, 20, 38, 26
MOST_ROWS = 40
LEAST_REACH = log(1.05)
"""How far the axis reaches to each side of 1 at least, so that noise does not look like a cliff."""
WHISKER_ROOM = 0.5
"""How much intervals may stretch the axis, as a share of the span of the ratios themselves."""
TICKS = (0, 100, -50, 50, -25, 25, 200, -75, 400, 900, -90, 1900, -95, 4900, -98)
FINE_TICKS = (10, -10, 5, -5, 2, -2)
"""Changes in per cent that the axis names, where each finds room; the first ones are placed first. The fine ones only
where fewer than four others do."""
TICK_ROOM = 52.0
"""Least distance of two labels of the axis."""
LETTER = 6.4
"""Width of a letter of the names, about."""


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One row of the plot. ratio: head over base, with its interval where one is known.

    statement: what is known of the row; only what is confirmed has a colour.
    """

    name: str
    ratio: float
    low: float | None
    high: float | None
    statement: Statement


def dot_plot_svg(rows: Sequence[StatedRow]) -> str | None:
    """The first MOST_ROWS rows of a comparison that have a ratio, in their order; None when none has."""
    changes = [
        ChangeRow(f"{row.operator} {row.right_variant} {row.case}", ratio, low, high, row.statement)
        for row in rows
        for ratio, low, high in (
            (row.paired_ratio, row.paired_low, row.paired_high) if row.paired_ratio else (row.ratio, row.low, row.high),
        )
        if ratio
    ]
    slower, faster = (sum(row.statement.direction == word for row in changes) for word in ("slower", "faster"))
    label = f"{slower} slower and {faster} faster of {plural(len(rows), 'row')}"
    return _pictures(changes, label, WIDE, 0.36) if changes else None


def _name_of(row: RegressionSeriesRow) -> str:
    cell = f"{row.variant} {row.case}"
    return f"{cell} {Signal.LAUNCH}" if row.signal == Signal.LAUNCH else cell


def cases_svg(series: Sequence[RegressionSeriesRow]) -> str | None:
    """The cases of a regression that were measured; None when none was."""
    changes = [ChangeRow(_name_of(row), row.ratio, row.low, row.high, state_member(row)) for row in series if row.ratio]
    label = f"A/B result of {plural(len(changes), 'case')}"
    return _pictures(changes, label, HALF, 0.44) if changes else None


def commit_svg(cells: Sequence[CommitCell], statements: Mapping[int, Statement]) -> str | None:
    """The changes of time that a commit has to do with, the largest first; None when none of them was measured.
    statements: at the commit, by series. What broke or was repaired has no change of time that a trial decided."""
    times = (StatementDirection.SLOWER, StatementDirection.FASTER)
    changes = [
        ChangeRow(
            f"{cell.operator} {cell.variant} {cell.case}", ratio, cell.compared_low, cell.compared_high, statement
        )
        for cell in cells
        if cell.is_changed and (ratio := cell.compared or cell.change)
        if (statement := statements.get(cell.stated_series_id, NO_DATA)).direction in times
    ]
    changes.sort(key=lambda row: -abs(log(row.ratio)))
    return _pictures(changes, f"Changes of {plural(len(changes), 'case')}", WIDE, 0.36) if changes else None


def _pictures(rows: Sequence[ChangeRow], label: str, width: float, named: float) -> str:
    return _plot(rows, label, width, named) + _plot(rows, label, NARROW, 0.0)


@dataclass(frozen=True, slots=True)
class RatioAxis:
    """A logarithmic axis of ratios. low, high: logarithms at its ends; left, right: where these stand."""

    low: float
    high: float
    left: float
    right: float

    def x(self, ratio: float) -> float:
        """Where a ratio stands; one beyond an end of the axis stands at that end."""
        level = min(max(log(ratio), self.low), self.high)
        return self.left + (level - self.low) / (self.high - self.low) * (self.right - self.left)

    def ticks(self) -> list[tuple[float, str]]:
        """(place, label) of the ticks that find room, from left to right."""
        placed: dict[float, str] = {}
        for percent in (*TICKS, *FINE_TICKS):
            if percent == FINE_TICKS[0] and len(placed) > 3:
                break
            ratio = 1 + percent / 100
            x = self.x(ratio)
            if self.low <= log(ratio) <= self.high and all(abs(x - other) >= TICK_ROOM for other in placed):
                sign = "+" if percent > 0 else "\u2212" if percent else ""
                placed[x] = f"×{ratio:.0f}" if percent >= 300 else f"{sign}{abs(percent)}\u2009%"
        return sorted(placed.items())


def ratio_axis(rows: Sequence[ChangeRow], left: float, right: float) -> RatioAxis:
    """The axis that shows every ratio of the rows, 1, and as much of their intervals as fits."""
    levels = [log(row.ratio) for row in rows]
    low, high = min(-LEAST_REACH, *levels), max(LEAST_REACH, *levels)
    room = (high - low) * WHISKER_ROOM
    ends = [log(end) for row in rows for end in (row.low, row.high) if end]
    low, high = max(low - room, min(low, *ends)) if ends else low, min(high + room, max(high, *ends)) if ends else high
    edge = (high - low) * 0.04
    return RatioAxis(low - edge, high + edge, left, right)


def _plot(rows: Sequence[ChangeRow], label: str, width: float, named: float) -> str:
    """named: the share of the width that the names take; 0 writes them above the dots."""
    shown, left, pitch = rows[:MOST_ROWS], width * named or 8.0, ROW if named else TWO_LINES
    axis = ratio_axis(shown, left, width - RIGHT)
    height = AXIS + pitch * len(shown) + 4
    parts = []
    for x, text in axis.ticks():
        tone = "grid zero" if x == axis.x(1.0) else "grid"
        parts.append(f'<path class="{tone}" d="M{x:.1f} {AXIS - 6}V{height}"/>')
        parts.append(f'<text x="{x:.1f}" y="12" text-anchor="middle">{text}</text>')
    letters = int((left if named else width) / LETTER) - 2
    for index, row in enumerate(shown):
        parts.append(_row(row, axis, AXIS + index * pitch, width, letters, above=not named))
    text = f"{label}; first: " + ", ".join(f"{row.name} {change(row.ratio)}" for row in shown[:3])
    box = f'viewBox="0 0 {width:.0f} {height}" role="img" aria-label="{escape(text)}"'
    size = {WIDE: "", HALF: " half", NARROW: " narrow"}[width]
    return f'<svg class="dots-plot{size}" {box}>{"".join(parts)}</svg>'


def _row(row: ChangeRow, axis: RatioAxis, y: int, width: float, letters: int, *, above: bool) -> str:
    """above: the name has a line of its own."""
    centre = y + ROW / 2 + (TWO_LINES - ROW if above else 0)
    # Of a result that broke or was repaired no trial decided the time.
    is_timed = row.statement.direction in (StatementDirection.SLOWER, StatementDirection.FASTER)
    tone = {"slower": "worse", "faster": "better"}.get(statement_tone(row.statement), "same") if is_timed else "same"
    data = "".join(f' {key}="{escape(value)}"' for key, value in statement_data(row.statement).items() if value)
    cut = row.name if len(row.name) <= letters else f"{row.name[: letters - 1]}…"
    whisker = _whisker(axis, row.low, row.high, centre) if row.low and row.high else ""
    title = f"{row.name}: {change(row.ratio)}" + (f" ({interval(row.low, row.high)})" if row.low and row.high else "")
    return (
        f'<g class="{tone}"{data}><title>{escape(title)}</title>'
        f'<text x="0" y="{y + ROW / 2 + 4:.0f}">{escape(cut)}</text>'
        f'{whisker}<circle cx="{axis.x(row.ratio):.1f}" cy="{centre:.1f}" r="4.5"/>'
        f'<text class="amount" x="{width:.0f}" y="{centre + 4:.0f}" text-anchor="end">{change(row.ratio)}</text></g>'
    )


def _whisker(axis: RatioAxis, low: float, high: float, y: float) -> str:
    """The line of an interval: with a bar where it ends, with an arrow where it goes on beyond the axis."""
    left, right = axis.x(low), axis.x(high)
    ends = [
        f"M{x + 5 * turn:.1f} {y - 4:.0f}L{x:.1f} {y:.0f}l{5 * turn} 4" if is_cut else f"M{x:.1f} {y - 4:.0f}v8"
        for x, turn, is_cut in ((left, 1, log(low) < axis.low), (right, -1, log(high) > axis.high))
    ]
    return f'<path d="{ends[0]}M{left:.1f} {y:.0f}H{right:.1f}{ends[1]}"/>'
