"""Ends changes by evidence, and looks for those of a merged branch on the watched branch.

Each function reads, asks git with no transaction open, and writes once; what somebody changed meanwhile is left alone.
"""

from __future__ import annotations

from warpwatch import git
from warpwatch.contract.words import Cause, ChangeDirection, Triage
from warpwatch.db.database import Database
from warpwatch.db.reads import judging
from warpwatch.db.reads.closing import (
    MergedChange,
    OpenChange,
    list_later_changes,
    list_later_checks,
    list_merged_changes,
    list_open_changes,
)
from warpwatch.db.regressions import SuspectedSeries, close_as, find_same, link_merged
from warpwatch.db.triage import SERVICE, set_triage
from warpwatch.server.history.commits import write_down
from warpwatch.server.history.mirror import Mirrors
from warpwatch.server.judge.writing import write_suspicion
from warpwatch.server.verdicts.closing import Fix, find_fix
from warpwatch.server.verdicts.steps import NewSuspicion


def close_changes(database: Database, mirrors: Mirrors, operator_id: int, device_id: int) -> int:
    """Closes the changes of an operator on a device that a later commit of their branch ended; how many these are."""
    with database.session() as session:
        changes = list_open_changes(session, operator_id, device_id)
        checks = list_later_checks(session, operator_id, device_id) if changes else []
        later = list_later_changes(session, operator_id, device_id) if changes else []
    closed = 0
    for change in changes:
        fix = find_fix(
            change,
            [row for row in checks if row.regression_id == change.regression_id],
            [row for row in later if row.regression_id == change.regression_id],
        )
        if fix is not None:
            state = _state_of(mirrors, change, fix)
            with database.session() as session:
                closed += close_as(session, change.regression_id, state, fix.commit_id, _describe(state, fix))
    return closed


def _state_of(mirrors: Mirrors, change: OpenChange, fix: Fix) -> Triage:
    """Reverted where the operator is made from the sources that it had before the change."""
    try:
        is_revert = mirrors.of(change).same_sources(change.operator, change.base_sha, fix.sha)
    except git.GitError:
        is_revert = False
    return Triage.REVERTED if is_revert else Triage.FIXED


def _describe(state: Triage, fix: Fix) -> str:
    return f"{state} by {fix.sha[:9]}"


def adopt_merged(database: Database, mirrors: Mirrors) -> int:
    """Suspects the open changes of merged branches at the commit that merged them; how many these are.

    A trial compares that commit with its first parent, so what the merge did not bring is dismissed.
    """
    with database.session() as session:
        merged = list_merged_changes(session)
    return sum(_adopt(database, mirrors, change) for change in merged)


def _adopt(database: Database, mirrors: Mirrors, change: MergedChange) -> bool:
    mirror = mirrors.of(change)
    try:
        merge = git.describe(mirror.path, change.merge_sha)
        if merge.parent_sha is None:
            return False
        infos = [git.describe(mirror.path, merge.parent_sha), merge]
        is_same = mirror.same_sources(change.operator, merge.parent_sha, merge.sha)
    except git.GitError:
        return False
    with database.session() as session:
        if is_same:
            note = f"{merge.sha[:9]} merged the branch without this change"
            set_triage(session, change.regression_id, Triage.INVALID, SERVICE, note)
            return True
        regression = judging.read_state(session, change.regression_id)
        members = judging.list_members(session, change.regression_id)
        ids = write_down(session, change.repository_id, infos)
        series = tuple(
            SuspectedSeries(item.series_id, item.ratio, item.base_status, item.head_status)
            for item in members
            if item.verdict == "confirmed"
        )
        ends = (merge.parent_sha, merge.sha)
        direction = ChangeDirection(regression.direction)
        suspicion = NewSuspicion(*ends, direction, regression.ratio, series, Cause(regression.cause))
        place = (regression.operator_id, regression.device_id)
        write_suspicion(session, *place, suspicion, ids)
        other_id = find_same(session, *place, ids[ends[0]], ids[ends[1]], direction)
        return other_id is not None and link_merged(session, change.regression_id, other_id)
