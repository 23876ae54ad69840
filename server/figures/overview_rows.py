"""One row per operator for the overview: sparkline, best variant, worst open change, checks, row of the heat map."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import exp, log
from statistics import median

from warpwatch.contract.words import ChangeDirection
from warpwatch.db.reads.overview import OverviewCell
from warpwatch.db.trends import TrendCell, TrendCommit, TrendGrid
from warpwatch.server.figures.formats import change, direction, plural, variant_order
from warpwatch.server.figures.sparklines import trend_sparkline
from warpwatch.server.figures.speedups import TimedCell, baseline_of, variant_speedups

LEAST_SPAN = log(1.05)
"""Height of a sparkline at least, so that noise does not look like a cliff."""
CHECKS = ("pass", "fail", "not_applicable", "not_run")
LEAST_SPEEDUP = 1.005
"""A smaller one would read 1.00×."""
HEATS = (0.03, 0.10, 0.25, 1.0)
"""Changes from which the colour of the heat map grows; the first is what counts as a change at all."""


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
class TrendTile:
    """A cell of the heat map. heat: -4 (faster) to 4 (slower); text: the change in per cent, short."""

    cell: TrendCell
    heat: int
    text: str


@dataclass(frozen=True, slots=True)
class OperatorSummary:
    """checks: cells by CHECKS. tiles: one per commit of the heat map, None where it was not measured."""

    operator: str
    cases: int
    variants: int
    sparkline: str
    best: BestVariant | None
    worst: OverviewCell | None
    checks: dict[str, int]
    tiles: list[TrendTile | None]
    last: TrendCell | None
    last_sha: str | None


def operator_summaries(cells: Sequence[OverviewCell], trends: TrendGrid) -> list[OperatorSummary]:
    """One row per operator. cells: ordered by operator."""
    moved: dict[str, dict[int, TrendCell]] = defaultdict(dict)
    for cell in trends.cells:
        moved[cell.operator][cell.commit_id] = cell
    return [
        _summary(operator, list(group), moved.get(operator, {}), trends.commits)
        for operator, group in groupby(cells, key=lambda cell: cell.operator)
    ]


def _summary(
    operator: str, cells: list[OverviewCell], moved: Mapping[int, TrendCell], commits: Sequence[TrendCommit]
) -> OperatorSummary:
    row = [moved.get(commit.id) for commit in commits]
    last = next((cell for cell in reversed(row) if cell), None)
    shas = {commit.id: commit.sha for commit in commits}
    return OperatorSummary(
        operator,
        len({cell.case for cell in cells}),
        len({cell.variant for cell in cells}),
        operator_sparkline(operator, row),
        best_variant(cells),
        max((cell for cell in cells if cell.regression_id), key=_severity, default=None),
        check_counts(cells),
        [_tile(cell) if cell else None for cell in row],
        last,
        shas[last.commit_id] if last else next((cell.commit_sha for cell in cells if cell.commit_sha), None),
    )


def _severity(cell: OverviewCell) -> tuple[bool, float]:
    return cell.regression_direction == ChangeDirection.BROKEN, cell.regression_ratio or 1.0


def check_counts(cells: Sequence[OverviewCell]) -> dict[str, int]:
    """Cells by how their newest check ended; `unsupported` and `skipped` are not applicable."""
    names = {None: "not_run", "ok": "pass", "unsupported": "not_applicable", "skipped": "not_applicable"}
    counts = Counter(names.get(cell.check_status, "fail") for cell in cells)
    return {name: counts[name] for name in CHECKS}


def best_variant(cells: Sequence[TimedCell]) -> BestVariant | None:
    """The variant that is the fastest of most cases, among those whose newest check has not failed; None without a
    time."""
    timed = [cell for cell in cells if cell.median_ns and cell.check_status in (None, "ok")]
    fastest: dict[str, TimedCell] = {}
    for cell in timed:
        known = fastest.get(cell.case)
        if known is None or (cell.median_ns or 0) < (known.median_ns or 0):
            fastest[cell.case] = cell
    if not fastest:
        return None
    wins = Counter(cell.variant for cell in fastest.values())
    name = min(wins, key=lambda variant: (-wins[variant], variant_order(variant)))
    shares = [cell.roofline_share for cell in timed if cell.variant == name and cell.roofline_share is not None]
    speedup = next((row for row in variant_speedups(cells) if row.variant == name), None)
    return BestVariant(
        name,
        wins[name],
        len(fastest),
        speedup.median if speedup else None,
        baseline_of(sorted({cell.variant for cell in timed}, key=variant_order)),
        median(shares) if shares else None,
    )


def _tile(cell: TrendCell) -> TrendTile:
    if cell.change is None:
        return TrendTile(cell, 0, "•")
    if direction(cell.change) == "same":
        return TrendTile(cell, 0, "·")
    steps = sum(max(cell.change, 1 / cell.change) >= 1 + border for border in HEATS)
    percent = (cell.change - 1) * 100
    text = f"+{percent:.0f}" if cell.change > 1 else f"\N{MINUS SIGN}{-percent:.0f}"
    return TrendTile(cell, steps if cell.change > 1 else -steps, text if percent < 300 else f"×{cell.change:.0f}")


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


def operator_sparkline(operator: str, row: Sequence[TrendCell | None]) -> str:
    """The geometric mean of an operator's series over the commits; empty without a point."""
    pieces = levels(row)
    if not pieces:
        return ""
    moved = exp(pieces[-1][-1][1] - pieces[-1][0][1])
    label = f"{operator}: {change(moved)} over {plural(sum(map(len, pieces)), 'measured commit')}"
    return trend_sparkline(pieces, len(row), LEAST_SPAN, label)
