"""One row per operator for the list of kernels, the one that needs somebody most first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warpwatch.db.reads.operator_cases import CaseSeries, ChangeCounts
from warpwatch.db.reads.standing import VerdictMark
from warpwatch.db.trends import TrendGrid
from warpwatch.server.figures.overview_rows import BestVariant, best_variant, operator_trends
from warpwatch.server.verdicts.statements import Statement


@dataclass(frozen=True, slots=True)
class KernelRow:
    """failing: variants and cases whose newest check is not right. open, suspected: how many regressions. worst: the
    statement about the worst of them."""

    operator: str
    cases: int
    variants: int
    best: BestVariant | None
    failing: int
    open: int
    suspected: int
    worst: Statement | None
    sparkline: str


def kernel_rows(
    series: Sequence[CaseSeries],
    changes: Mapping[str, ChangeCounts],
    worst: Mapping[str, Statement | None],
    trends: TrendGrid,
    marks: Sequence[VerdictMark],
) -> list[KernelRow]:
    """A row for every operator with a series: with open regressions first, then with failing checks, then with
    suspected changes."""
    by_operator: dict[str, list[CaseSeries]] = defaultdict(list)
    for row in series:
        by_operator[row.operator].append(row)
    # One commit is no trend.
    pictures = {
        name: picture.sparkline
        for name, picture in operator_trends(trends, marks).items()
        if sum(cell is not None for cell in picture.row) > 1
    }
    rows = [
        KernelRow(
            operator,
            len({row.case for row in own}),
            len({row.variant for row in own}),
            best_variant(own),
            sum(row.check_status not in (None, "ok", "unsupported", "skipped") for row in own),
            changes[operator].open if operator in changes else 0,
            changes[operator].suspected if operator in changes else 0,
            worst.get(operator),
            pictures.get(operator, ""),
        )
        for operator, own in by_operator.items()
    ]
    return sorted(rows, key=lambda row: (-row.open, -row.failing, -row.suspected, row.operator))
