"""The cases of an operator side by side: a small history of each, all with the same commits and the same scale. SVG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import exp, log

from warpwatch.contract.words import StatementKind
from warpwatch.db.reads.operator_cases import CaseChange, CaseSeries
from warpwatch.db.trends import RecentPoint
from warpwatch.server.reports.formats import change, natural
from warpwatch.server.reports.wording import statement_data, statement_tone
from warpwatch.server.verdicts.statements import Statement, badness, state_change

WIDTH, HEIGHT, EDGE, SCALE = 216.0, 46.0, 5.0, 40.0
"""Size of a picture; its margin, and the room for the scale at its left."""
MOST_PICTURES = 24
"""Cases with a picture; cases beyond them have their name alone."""
LEAST_SPAN, MOST_REACH = 2 * log(1.05), log(4)
"""The least change that the height spans, and the largest that it shows; a line beyond is cut off."""


@dataclass(frozen=True, slots=True)
class CaseChoice:
    """A case to choose. variant: whose history svg shows, relative to its first point; svg is empty where there is
    none. open, suspected: statements about its changes, the worst first; variants: of these, by series.
    """

    case: str
    variant: str
    is_declared: bool
    svg: str
    open: list[Statement]
    suspected: list[Statement]
    variants: dict[int, str]


def shown_series(
    series: Sequence[CaseSeries], changes: Sequence[CaseChange] = (), variant: str | None = None
) -> list[CaseSeries]:
    """One series of each case, in natural order: that of the variant, else that of the worst confirmed change, so that
    its mark stands beside its own line, else the fastest right one."""
    statements = [(item.series_id, case_statement(item)) for item in changes]
    confirmed = [(id_, badness(about)) for id_, about in statements if about.kind == StatementKind.CONFIRMED]
    changed = dict(sorted(confirmed, key=lambda pair: pair[1], reverse=True))
    unchanged = (float("inf"), 0.0)
    by_case: dict[str, list[CaseSeries]] = defaultdict(list)
    for row in series:
        by_case[row.case].append(row)

    def preference(row: CaseSeries) -> tuple[bool, tuple[float, float], bool, float]:
        is_other, rank = row.variant != variant, changed.get(row.series_id, unchanged)
        return is_other, rank, not row.is_right, row.median_ns or float("inf")

    return [min(by_case[case], key=preference) for case in sorted(by_case, key=natural)]


def case_choices(
    series: Sequence[CaseSeries],
    shown: Sequence[CaseSeries],
    points: Sequence[RecentPoint],
    changes: Sequence[CaseChange],
) -> list[CaseChoice]:
    """A choice for every shown series. points: of these, ordered by series and history. changes: of any series."""
    cases = {(row.variant, row.case) for row in series}
    by_case: dict[str, list[tuple[CaseChange, Statement]]] = defaultdict(list)
    for item in changes:
        if (item.variant, item.case) in cases:
            by_case[item.case].append((item, case_statement(item)))
    for about in by_case.values():
        about.sort(key=lambda pair: badness(pair[1]))
    drawn = {row.series_id for row in shown[:MOST_PICTURES]}
    histories = {id_: list(group) for id_, group in groupby(points, key=lambda point: point.series_id) if id_ in drawn}
    histories = {id_: history for id_, history in histories.items() if len(history) > 1}
    places = commit_places(points)
    levels = [level for history in histories.values() for level in _levels(history)]
    low, high = max(min([0.0, *levels]), -MOST_REACH), min(max([0.0, *levels]), MOST_REACH)
    missing = max(LEAST_SPAN - (high - low), 0.0) / 2
    scale = _Scale(low - missing, high + missing, places)
    return [
        CaseChoice(
            row.case,
            row.variant,
            bool(row.suites),
            _svg(row, histories[row.series_id], by_case[row.case], scale) if row.series_id in histories else "",
            [about for _, about in by_case[row.case] if about.kind == StatementKind.CONFIRMED],
            [about for _, about in by_case[row.case] if about.kind != StatementKind.CONFIRMED],
            {item.series_id: item.variant for item, _ in by_case[row.case]},
        )
        for row in shown
    ]


def case_statement(item: CaseChange) -> Statement:
    """What is said of a change in one series."""
    change = item.regression_id, item.direction, item.phase, item.ratio, item.signal
    return state_change(*change, can_confirm=item.can_confirm, series_id=item.series_id)


def commit_places(points: Sequence[RecentPoint]) -> dict[int, int]:
    """The column of every commit of the pictures, by its id, in the order of history."""
    commits = sorted({(point.ordinal, point.commit_id) for point in points})
    return {commit_id: place for place, (_, commit_id) in enumerate(commits)}


@dataclass(frozen=True, slots=True)
class _Scale:
    """low, high: the logarithms at the foot and the head of every picture."""

    low: float
    high: float
    places: Mapping[int, int]

    @property
    def step(self) -> float:
        return (WIDTH - SCALE - EDGE) / max(len(self.places) - 1, 1)

    def x(self, commit_id: int) -> float:
        return SCALE + self.places[commit_id] * self.step

    def y(self, level: float) -> float:
        share = (self.high - max(self.low, min(self.high, level))) / (self.high - self.low)
        return EDGE + share * (HEIGHT - 2 * EDGE)


def _levels(series: Sequence[RecentPoint]) -> list[float]:
    """The logarithm of each point over the first one."""
    return [log(point.median_ns / series[0].median_ns) for point in series]


def _svg(
    row: CaseSeries, points: Sequence[RecentPoint], changes: Sequence[tuple[CaseChange, Statement]], scale: _Scale
) -> str:
    # Levels of two environments or cards are never joined.
    levels = zip(points, _levels(points), strict=True)
    pieces = [list(piece) for _, piece in groupby(levels, key=lambda item: (item[0].environment_id, item[0].card_id))]
    lines = [[f"{scale.x(point.commit_id):.0f} {scale.y(level):.1f}" for point, level in piece] for piece in pieces]
    path = "".join(f"M{'L'.join(places)}" for places in lines)
    # A line through one place would draw nothing.
    dots = "".join(
        f'<circle cx="{scale.x(piece[0][0].commit_id):.0f}" cy="{scale.y(piece[0][1]):.1f}" r="2.5"/>'
        for piece in pieces
        if len(piece) == 1
    )
    # A change of another variant, or of the host's time, is none of this line.
    own = [(item.head_id, about) for item, about in reversed(changes) if item.series_id == row.series_id]
    marks = {head_id: about for head_id, about in own if head_id in scale.places}
    bands = "".join(_band(scale.x(id_), max(scale.step, 4.0), about) for id_, about in marks.items())
    moved = change(points[-1].median_ns / points[0].median_ns)
    label = escape(f"{row.case}: {row.variant} {moved} since the first commit shown")
    return (
        f'<svg class="multiple" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{label}">'
        f'{bands}<path class="grid" d="M{SCALE:.0f} {scale.y(0.0):.1f}H{WIDTH:.0f}"/>'
        f'<text x="{SCALE - 4:.0f}" y="10" text-anchor="end">{_percent(scale.high)}</text>'
        f'<text x="{SCALE - 4:.0f}" y="{HEIGHT - 3:.0f}" text-anchor="end">{_percent(scale.low)}</text>'
        f'<path d="{path}"/>{dots}</svg>'
    )


def _band(x: float, width: float, about: Statement) -> str:
    data = "".join(f' {name}="{escape(value)}"' for name, value in statement_data(about).items() if value)
    place = f'x="{x - width / 2:.1f}" y="0" width="{width:.1f}" height="{HEIGHT:.0f}"'
    return f'<rect class="{statement_tone(about)}" {place}{data}/>'


def _percent(level: float) -> str:
    """A level of the scale, short: +5 %, −52 %, ×4."""
    percent = round((exp(level) - 1) * 100)
    if percent >= 300:
        return f"×{exp(level):.0f}"
    sign = "+" if percent > 0 else "\N{MINUS SIGN}" if percent else ""
    return f"{sign}{abs(percent)}\N{THIN SPACE}%"
