"""What ends a confirmed change: a later check that passes, or confirmed changes that undo it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from warpwatch.contract.words import ChangeDirection, Status
from warpwatch.db.reads.closing import LaterChange, LaterCheck, OpenChange
from warpwatch.server.verdicts.thresholds import thresholds_of

LEAST_UNDONE = 0.5
"""Part of a slow-down that has to be gone before it counts as undone, however small it was."""


@dataclass(frozen=True, slots=True)
class Fix:
    """The commit that ended a change: the first at which what was broken passes again, or that undid a slow-down."""

    regression_id: int
    commit_id: int
    sha: str
    ordinal: int


def find_fix(change: OpenChange, checks: Sequence[LaterCheck], changes: Sequence[LaterChange]) -> Fix | None:
    """The commit that ended an open change; None while one of its series still shows it.

    checks, changes: of this regression, by series, oldest commit first.
    """
    ends: dict[int, LaterCheck | LaterChange | None]
    if change.direction == ChangeDirection.BROKEN:
        ends = {number: _first_passing(rows) for number, rows in groupby(checks, key=lambda row: row.series_id)}
    else:
        by_series = groupby(changes, key=lambda row: row.series_id)
        ends = {number: _first_undoing(list(rows), change.device_kind) for number, rows in by_series}
    fixes = {
        number: Fix(change.regression_id, end.commit_id, end.sha, end.ordinal)
        for number, end in ends.items()
        if end is not None
    }
    if not change.series or not fixes.keys() >= set(change.series):
        return None
    return max(fixes.values(), key=lambda fix: (fix.ordinal, fix.commit_id))


def _first_passing(rows: Iterable[LaterCheck]) -> LaterCheck | None:
    """The check from which on all pass; None when the newest fails."""
    first = None
    for row in rows:
        first = (first or row) if row.status == Status.OK else None
    return first


def _first_undoing(rows: Sequence[LaterChange], device_kind: str) -> LaterChange | None:
    """The change after which what is left of the first one, all changes since included, is no slow-down any more."""
    own = next((row for row in rows if row.is_first), None)
    if own is None or own.ratio is None or own.ratio <= 1:
        return None
    remaining = 1.0
    limit = min(thresholds_of(device_kind).undone_ratio, 1 + (own.ratio - 1) * LEAST_UNDONE)
    for row in rows:
        # A comparison takes the most changed series only; for the others the times of history tell.
        if row.ratio is not None:
            remaining *= row.ratio
        elif row.before_ns and row.after_ns:
            remaining = row.after_ns / row.before_ns
        if not row.is_first and row.is_settled and remaining <= limit:
            return row
    return None
