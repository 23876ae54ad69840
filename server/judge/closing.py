"""Ends changes by evidence, and looks for those of a merged branch on the watched branch.

A later check that passes ends a breakage, and confirmed changes that undo it end a slow-down: `find_fix` decides that
from rows alone. The other functions read, ask git with no transaction open, and write once; a change that somebody
triaged meanwhile is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from warpwatch import git
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.words import Cause, ChangeDirection, Status, Triage
from warpwatch.db.bundles import date_back
from warpwatch.db.closing import (
    LaterChange,
    LaterCheck,
    MergedChange,
    OpenChange,
    SeriesFix,
    close_as,
    link_merged,
    list_later_changes,
    list_later_checks,
    list_merged_changes,
    list_open_changes,
    save_fixes,
)
from warpwatch.db.database import Database
from warpwatch.db.reads import judging
from warpwatch.db.registry import record_commits
from warpwatch.db.regressions import SuspectedSeries, find_same
from warpwatch.db.triage import SERVICE, set_triage
from warpwatch.server.history.mirror import Mirrors
from warpwatch.server.judge.writing import VerdictWriter
from warpwatch.server.verdicts.changes import AFTER
from warpwatch.server.verdicts.steps import NewSuspicion
from warpwatch.server.verdicts.thresholds import kind_of_time, thresholds_of

LEAST_UNDONE = 0.5
"""Part of a slow-down that has to be gone before it counts as undone, however small it was."""


@dataclass(frozen=True, slots=True)
class Fix:
    """The commit that ended a change: the first at which what was broken passes again, or that undid a slow-down."""

    regression_id: int
    commit_id: int
    sha: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class SeriesOutcome:
    """How a change goes on in one of its series. left_ratio: see SeriesFix. end: the check or change that ended it
    there."""

    left_ratio: float | None = None
    end: LaterCheck | LaterChange | None = None


def close_changes(
    database: Database, mirrors: Mirrors, operator_id: int, device_id: int, imported_at: datetime | None = None
) -> None:
    """Closes the changes of an operator on a device that a later commit of their branch ended.

    imported_at: when the results that end them were measured, where they were imported.
    """
    with database.session() as session:
        changes = list_open_changes(session, operator_id, device_id)
        checks = list_later_checks(session, operator_id, device_id) if changes else []
        later = list_later_changes(session, operator_id, device_id, AFTER) if changes else []
    for change in changes:
        ends = find_ends(
            change,
            [row for row in checks if row.regression_id == change.regression_id],
            [row for row in later if row.regression_id == change.regression_id],
        )
        fixes = [
            SeriesFix(number, item.left_ratio, item.end.commit_id if item.end else None)
            for number, item in ends.items()
        ]
        newest = max((item.end for item in ends.values() if item.end), key=_place, default=None)
        with database.session() as session:
            save_fixes(session, change.regression_id, fixes, newest.commit_id if newest else None)
        fix = find_fix(change, ends)
        if fix is None:
            continue
        try:
            # Reverted, where the operator is made from the sources that it had before the change.
            is_revert = mirrors.of(change).same_sources(change.operator, change.base_sha, fix.sha)
        except git.GitError:
            is_revert = False
        state = Triage.REVERTED if is_revert else Triage.FIXED
        with database.session() as session:
            close_as(session, change.regression_id, state, fix.commit_id, f"{state} by {short_sha(fix.sha)}")
            if imported_at is not None:
                date_back(session, operator_id, imported_at)


def find_ends(
    change: OpenChange, checks: Sequence[LaterCheck], changes: Sequence[LaterChange]
) -> dict[int, SeriesOutcome]:
    """How an open change goes on in each of its series that something later is known of.

    checks, changes: of this regression, by series, oldest commit first.
    """
    if change.direction == ChangeDirection.BROKEN:
        by_check = groupby(checks, key=lambda row: row.series_id)
        return {number: SeriesOutcome(end=_first_passing(rows)) for number, rows in by_check}
    by_series = groupby(changes, key=lambda row: row.series_id)
    return {number: _undoing(list(rows), change.device_kind) for number, rows in by_series}


def find_fix(change: OpenChange, ends: Mapping[int, SeriesOutcome]) -> Fix | None:
    """The commit that ended an open change; None while one of its series still shows it."""
    last = {number: item.end for number, item in ends.items() if item.end is not None}
    if not change.series or not last.keys() >= set(change.series):
        return None
    end = max(last.values(), key=_place)
    return Fix(change.regression_id, end.commit_id, end.sha, end.ordinal)


def _place(end: LaterCheck | LaterChange) -> tuple[int, int]:
    return end.ordinal, end.commit_id


def _first_passing(rows: Iterable[LaterCheck]) -> LaterCheck | None:
    """The check from which on all pass; None when the newest fails."""
    first = None
    for row in rows:
        first = (first or row) if row.status == Status.OK else None
    return first


def _undoing(rows: Sequence[LaterChange], device_kind: str) -> SeriesOutcome:
    """What the changes since a slow-down left of it, and the one after which that is no slow-down any more."""
    own = next((row for row in rows if row.is_first), None)
    if own is None or own.ratio is None or own.ratio <= 1:
        return SeriesOutcome()
    remaining, left = 1.0, own.ratio
    thresholds = thresholds_of(kind_of_time(device_kind, own.metric, own.protocol))
    limit = min(thresholds.undone_ratio, 1 + (own.ratio - 1) * LEAST_UNDONE)
    for row in rows:
        # A comparison takes the most changed series only; for the others the times of history tell, where they differ
        # from the change by more than noise.
        if row.ratio is not None:
            remaining *= row.ratio
        elif row.before_ns and row.after_ns and own.ratio * row.before_ns > row.after_ns * thresholds.confirm_ratio:
            remaining = row.after_ns / row.before_ns
        if not row.is_first and row.is_settled:
            # A later slow-down is a change of its own, and makes no more of this one.
            left = min(left, remaining)
            if remaining <= limit:
                return SeriesOutcome(remaining, row)
    return SeriesOutcome(left if left < own.ratio else None)


def adopt_merged(database: Database, mirrors: Mirrors) -> None:
    """Suspects the open changes of merged branches at the commit that merged them.

    A trial compares that commit with its first parent, so what the merge did not bring is dismissed.
    """
    with database.session() as session:
        merged = list_merged_changes(session)
    for change in merged:
        _adopt(database, mirrors, change)


def _adopt(database: Database, mirrors: Mirrors, change: MergedChange) -> None:
    mirror = mirrors.of(change)
    try:
        merge = git.describe(mirror.path, change.merge_sha)
        if merge.parent_sha is None:
            return
        infos = [git.describe(mirror.path, merge.parent_sha), merge]
        is_same = mirror.same_sources(change.operator, merge.parent_sha, merge.sha)
    except git.GitError:
        return
    with database.session() as session:
        if is_same:
            note = f"{short_sha(merge.sha)} merged the branch without this change"
            set_triage(session, change.regression_id, Triage.INVALID, SERVICE, note)
            return
        regression = judging.read_state(session, change.regression_id)
        members = judging.list_members(session, change.regression_id)
        ids = record_commits(session, change.repository_id, infos)
        series = tuple(
            SuspectedSeries(item.series_id, item.ratio, item.base_status, item.head_status)
            for item in members
            if item.verdict == "confirmed"
        )
        ends = (merge.parent_sha, merge.sha)
        direction = ChangeDirection(regression.direction)
        suspicion = NewSuspicion(*ends, direction, regression.ratio, series, Cause(regression.cause))
        place = (regression.operator_id, regression.device_id)
        VerdictWriter(session, *place, ids).suspect(suspicion)
        other_id = find_same(session, *place, ids[ends[0]], ids[ends[1]], direction)
        if other_id is not None:
            link_merged(session, change.regression_id, other_id)
