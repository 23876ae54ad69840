"""Suspicions from a check: what was right before and is broken now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from warpwatch.contract.words import Cause, ChangeDirection, Status
from warpwatch.db.reads.observed import BAD, CheckRow
from warpwatch.db.regressions import SuspectedSeries
from warpwatch.server.verdicts.known import KnownRegressions
from warpwatch.server.verdicts.steps import NewSuspicion


@dataclass(frozen=True, slots=True)
class Breakage:
    """One variant on one case: right at the base, broken at the head, both neighbours in what was checked."""

    base: CheckRow
    head: CheckRow


def find_breakages(rows: Sequence[CheckRow], line: set[str], commit_id: int) -> list[Breakage]:
    """Where something broke beside the commit that was checked.

    rows: by variant and case, oldest commit first. line: ids of the commits on the line of history of that commit.
    """
    breakages = []
    on_line = (row for row in rows if row.sha in line)
    for _, group in groupby(on_line, key=lambda row: (row.variant_id, row.case_id)):
        newest = [next(rows_of_commit) for _, rows_of_commit in groupby(group, key=lambda row: row.commit_id)]
        breakages += [
            Breakage(base, head)
            for base, head in pairwise(newest)
            if commit_id in (base.commit_id, head.commit_id) and base.status == Status.OK and head.status in BAD
        ]
    return breakages


def suspect_breakages(
    breakages: Sequence[Breakage], series: Mapping[tuple[int, int], int], known: KnownRegressions
) -> list[NewSuspicion]:
    """One suspicion for every range of commits in which something broke that nothing known explains.

    series: ids by (variant id, case id).
    """
    by_range: dict[tuple[str, str], list[SuspectedSeries]] = defaultdict(list)
    for item in breakages:
        series_id = series[item.base.variant_id, item.base.case_id]
        if not known.is_broken(series_id, item.base.ordinal, item.head.ordinal):
            suspected = SuspectedSeries(series_id, None, item.base.status, item.head.status)
            by_range[item.base.sha, item.head.sha].append(suspected)
    return [
        NewSuspicion(base, head, ChangeDirection.BROKEN, None, tuple(items), Cause.STATUS)
        for (base, head), items in by_range.items()
    ]
