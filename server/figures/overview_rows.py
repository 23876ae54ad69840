"""One row per operator for the overview: where it stands, sparkline, best variant, checks; and rows of the heat map."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import exp, log
from statistics import median

from warpwatch.contract.words import StatementDirection, StatementKind
from warpwatch.db.reads.overview import OverviewCell
from warpwatch.db.reads.standing import VerdictMark
from warpwatch.db.trends import TrendCell, TrendCommit, TrendGrid
from warpwatch.server.figures.sparklines import trend_sparkline
from warpwatch.server.figures.speedups import TimedCell, is_right, right_times, variant_speedups
from warpwatch.server.reports.formats import change, natural, plural, variant_order
from warpwatch.server.verdicts.statements import (
    Statement,
    badness,
    state_cell,
    state_launch,
    state_mark,
    worst_statement,
)

LEAST_SPAN = log(1.05)
"""Height of a sparkline at least, so that noise does not look like a cliff."""
CHECKS = ("pass", "fail", "not_applicable", "not_run")
LEAST_SPEEDUP = 1.005
"""A smaller one would read 1.00×."""


@dataclass(frozen=True, slots=True)
class BestVariant:
    """The variant that is the fastest of most cases. speedup, share of the roofline: the median over its cases."""

    name: str
    wins: int
    cases: int
    speedup: float | None
    baseline: str
    share: float | None

    @property
    def is_ahead(self) -> bool:
        """Whether its speed-up is worth a figure: the fastest variant of most cases may lose to the baseline in the
        median of all."""
        return self.speedup is not None and self.name != self.baseline and self.speedup >= LEAST_SPEEDUP


@dataclass(frozen=True, slots=True)
class TrendPicture:
    """How an operator moved. row: a cell per commit, None where it was not measured."""

    row: list[TrendCell | None]
    sparkline: str


@dataclass(frozen=True, slots=True)
class OperatorSummary:
    """worst: where its worst cell stands, None where nothing is open, suspected or failing. worst_cells: how many cells
    stand so. checks: cells by CHECKS. last: the newest cell of its trend."""

    operator: str
    cases: int
    variants: int
    sparkline: str
    best: BestVariant | None
    worst: Statement | None
    worst_cells: int
    checks: dict[str, int]
    last: TrendCell | None
    last_sha: str | None

    @property
    def is_checked(self) -> bool:
        return any(self.checks[name] for name in CHECKS[:3])


@dataclass(frozen=True, slots=True)
class ShiftTile:
    """A cell of the heat map: the worst statement about the series of an operator at a commit; None where their code
    did not change or nothing was measured."""

    statement: Statement | None
    series_id: int | None


def operator_summaries(
    cells: Sequence[OverviewCell], trends: TrendGrid, marks: Sequence[VerdictMark] = ()
) -> list[OperatorSummary]:
    """One row per operator, the worst first. cells: ordered by operator."""
    pictures = operator_trends(trends, marks)
    rows = [
        _summary(operator, list(group), trends.commits, pictures.get(operator, TrendPicture([], "")))
        for operator, group in groupby(cells, key=lambda cell: cell.operator)
    ]
    return sorted(rows, key=lambda row: (badness(row.worst) if row.worst else _NOTHING, natural(row.operator)))


_NOTHING = (99, 0.0)


def _summary(
    operator: str, cells: list[OverviewCell], commits: Sequence[TrendCommit], picture: TrendPicture
) -> OperatorSummary:
    last = next((cell for cell in reversed(picture.row) if cell), None)
    shas = {commit.id: commit.sha for commit in commits}
    stated = [statement for cell in cells for statement in (state_cell(cell), state_launch(cell))]
    notable = [statement for statement in stated if statement.kind in NOTABLE]
    worst = worst_statement(notable)
    return OperatorSummary(
        operator,
        len({cell.case for cell in cells}),
        len({cell.variant for cell in cells}),
        picture.sparkline,
        best_variant(cells),
        worst,
        sum((item.kind, item.direction, item.regression_id) == _change_of(worst) for item in notable) if worst else 0,
        check_counts(cells),
        last,
        shas[last.commit_id] if last else next((cell.commit_sha for cell in cells if cell.commit_sha), None),
    )


NOTABLE = (StatementKind.CONFIRMED, StatementKind.FAILED, StatementKind.SUSPECTED)


def _change_of(statement: Statement) -> tuple[StatementKind, StatementDirection | None, int | None]:
    return statement.kind, statement.direction, statement.regression_id


def shift_rows(
    statements: Mapping[tuple[int, str], Statement], operators: Mapping[int, str], shas: Sequence[str]
) -> tuple[list[str], list[tuple[str, list[ShiftTile]]]]:
    """The commits and rows of the heat map. operators: names by series.

    Left out are commits at which no code changed, as of documentation, and operators of which nothing is said.
    """
    cells: dict[tuple[str, str], list[Statement]] = defaultdict(list)
    for (series_id, sha), statement in statements.items():
        cells[operators[series_id], sha].append(statement)
    told = (StatementKind.SAME_CODE, StatementKind.NO_DATA)
    shown = [
        sha
        for sha in shas
        if any(item.kind not in told for name in set(operators.values()) for item in cells.get((name, sha), []))
    ]
    rows = []
    for name in sorted(set(operators.values()), key=natural):
        worst = [worst_statement(cells.get((name, sha), [])) for sha in shown]
        tiles = [
            ShiftTile(item if item and item.kind not in told else None, item.series_id if item else None)
            for item in worst
        ]
        if any(tile.statement and tile.statement.kind != StatementKind.NOT_TOLD_APART for tile in tiles):
            rows.append((name, tiles))
    return shown, rows


def check_counts(cells: Sequence[OverviewCell]) -> dict[str, int]:
    """Cells by how their newest check ended; `unsupported` and `skipped` are not applicable."""
    names = {None: "not_run", "ok": "pass", "unsupported": "not_applicable", "skipped": "not_applicable"}
    counts = Counter(names.get(cell.check_status, "fail") for cell in cells)
    return {name: counts[name] for name in CHECKS}


def best_variant(cells: Sequence[TimedCell]) -> BestVariant | None:
    """The variant that is the fastest of most cases, among those whose newest check has not failed; None without a
    time."""
    fastest = [min(times, key=times.__getitem__) for times in right_times(cells).values()]
    if not fastest:
        return None
    wins = Counter(fastest)
    name = min(wins, key=lambda variant: (-wins[variant], variant_order(variant)))
    mine = (cell for cell in cells if cell.variant == name and is_right(cell))
    shares = [cell.roofline_share for cell in mine if cell.roofline_share is not None]
    speedup = next((row for row in variant_speedups(cells) if row.variant == name), None)
    return BestVariant(
        name,
        wins[name],
        len(fastest),
        speedup.median if speedup else None,
        speedup.baseline if speedup else name,
        median(shares) if shares else None,
    )


def levels(row: Sequence[TrendCell | None]) -> list[list[tuple[int, float]]]:
    """The logarithm of the operator's time over the commits, relative to the first, as pieces of (place, level).

    A piece ends where the environment changed: levels of two environments are never joined.
    """
    pieces: list[list[tuple[int, float]]] = []
    level = 0.0
    for place, cell in enumerate(row):
        if cell is None:
            continue
        if cell.change is None or not pieces:
            pieces.append([])
        level += log(cell.change) if cell.change else 0.0
        pieces[-1].append((place, level))
    return pieces


def operator_trends(trends: TrendGrid, marks: Sequence[VerdictMark]) -> dict[str, TrendPicture]:
    """How each operator of the grid moved, with its verdicts."""
    moved: dict[str, dict[int, TrendCell]] = defaultdict(dict)
    for cell in trends.cells:
        moved[cell.operator][cell.commit_id] = cell
    placed: dict[str, list[tuple[int, Statement]]] = defaultdict(list)
    ordinals = [commit.ordinal for commit in trends.commits]
    for mark in marks:
        placed[mark.operator].append((bisect_left(ordinals, mark.ordinal), state_mark(mark)))
    rows = {name: [cells.get(commit.id) for commit in trends.commits] for name, cells in moved.items()}
    return {name: TrendPicture(row, _sparkline(name, row, placed[name])) for name, row in rows.items()}


def _sparkline(operator: str, row: Sequence[TrendCell | None], marks: Sequence[tuple[int, Statement]]) -> str:
    """The geometric mean of an operator's series over the commits; empty without a point. marks: with their columns."""
    pieces = levels(row)
    if not pieces:
        return ""
    moved = exp(pieces[-1][-1][1] - pieces[-1][0][1])
    label = f"{operator}: {change(moved)} over {plural(sum(map(len, pieces)), 'measured commit')}"
    return trend_sparkline(pieces, len(row), LEAST_SPAN, label, marks)
