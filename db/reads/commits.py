"""Reads everything known about one commit, and compares two commits or two variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.reads.builds import BuildView, read_builds
from warpwatch.db.reads.code import CommitRow, UnchangedRow, find_commit, list_unchanged
from warpwatch.db.reads.commit_cells import (
    CHANGES_AT,
    OperatorTally,
    count_cells,
    list_change_ids,
    newest_trace,
    read_times,
    read_traces,
)
from warpwatch.db.reads.query import fetch
from warpwatch.db.regressions import (
    COLUMNS,
    COMMITS_BETWEEN,
    CULPRIT,
    IS_OPEN,
    RANK,
    SEVERITY,
    TABLES,
    WORST_SIGNAL,
    RegressionRow,
)


@dataclass(frozen=True, slots=True)
class CulpritRow:
    """An open change that trials found a commit to have caused."""

    sha: str
    regression_id: int
    operator: str
    direction: str
    ratio: float | None
    signal: str | None = None


def list_culprits(session: Session, commit_ids: Sequence[int]) -> list[CulpritRow]:
    """The open changes that these commits caused, the largest first."""
    sql = f"""
    SELECT head.sha, regressions.id AS regression_id, operators.name AS operator, direction,
           coalesce(left_ratio, ratio) AS ratio, {WORST_SIGNAL} AS signal
    FROM {TABLES} WHERE head.id = ANY(:ids) AND {IS_OPEN} AND ({CULPRIT}) IS NOT NULL
    ORDER BY {RANK} DESC, {SEVERITY} DESC, regressions.id
    """
    return fetch(session, CulpritRow, sql, ids=list(commit_ids))


class CommitRole(StrEnum):
    """Relation of a commit to a change. cause: the commit caused the change. candidate: one of several commits that may
    have caused the change. fix: the commit ended the change."""

    CAUSE = "cause"
    CANDIDATE = "candidate"
    FIX = "fix"


@dataclass(frozen=True, slots=True)
class CommitChange:
    """A suspected or confirmed change that a commit has to do with."""

    role: CommitRole
    regression: RegressionRow


@dataclass(frozen=True, slots=True)
class CommitDetail:
    """device_keys: of the devices that it was tried on. has_parent: whether its first parent is stored. Its cells are a
    list of their own; see `list_cells`."""

    commit: CommitRow
    repository: str
    device_keys: list[str]
    operators: list[OperatorTally]
    builds: list[BuildView]
    unchanged: list[UnchangedRow]
    changes: list[CommitChange]
    has_parent: bool = False


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """Left and right may be two commits of one variant or two variants of one commit; ratio is right over left.

    low, high: the ratios that both 95 % intervals allow. paired_…: what the newest A/B comparison of the two commits
    says of the series, where there is one, its times as medians over the rounds; see server.explanation.paired.
    """

    operator: str
    case: str
    left_variant: str
    right_variant: str
    left_status: str | None
    right_status: str | None
    left_ns: float | None
    right_ns: float | None
    ratio: float | None
    separated: bool
    """True when the two 95 % intervals do not touch."""
    left_series_id: int | None
    right_series_id: int | None
    left_trace_id: int | None = None
    right_trace_id: int | None = None
    low: float | None = None
    high: float | None = None
    paired_outcome: str | None = None
    paired_ratio: float | None = None
    paired_low: float | None = None
    paired_high: float | None = None
    paired_left_ns: float | None = None
    paired_right_ns: float | None = None
    paired_job_id: int | None = None

    @property
    def is_changed(self) -> bool:
        """Whether the sides differ: an A/B comparison decides it, and without one the intervals, which do not touch."""
        return self.separated if self.paired_outcome is None else self.paired_outcome in ("slower", "faster")


MAX_CHANGES = 50
"""Changes of one commit that are listed, worst first."""

_CHANGES = f"""
SELECT {COLUMNS},
       CASE WHEN regressions.fixed_by_commit_id = :commit_id THEN '{CommitRole.FIX}'
            WHEN head.id = :commit_id AND {COMMITS_BETWEEN} = 0 THEN '{CommitRole.CAUSE}'
            WHEN merged_head.id = :commit_id AND regressions.merged_commits = 1 THEN '{CommitRole.CAUSE}'
            ELSE '{CommitRole.CANDIDATE}' END AS role
{CHANGES_AT} ORDER BY verdict = 'suspected', {RANK} DESC, {SEVERITY} DESC, regressions.id LIMIT {MAX_CHANGES}
"""

_PLACE = """
SELECT name, EXISTS (SELECT FROM commits WHERE repository_id = repositories.id AND sha = :parent_sha) AS has_parent
FROM repositories WHERE id = :repository_id
"""


def read_commit(session: Session, repository_id: int, sha: str) -> CommitDetail | None:
    """The details of a commit, given by its id or a unique prefix of the id; None when the commit is unknown."""
    commit = find_commit(session, repository_id, sha)
    if commit is None:
        return None
    values = {"repository_id": repository_id, "parent_sha": commit.parent_sha}
    repository, has_parent = session.execute(text(_PLACE), values).one()

    def change(role: str, **columns: Any) -> CommitChange:
        return CommitChange(CommitRole(role), RegressionRow(**columns))

    changes = fetch(session, change, _CHANGES, commit_id=commit.id)
    unchanged = list_unchanged(session, commit.id)
    tallies = count_cells(session, commit.id, change_ids(session, commit.id, changes))
    device_keys = sorted({key for tally in tallies for key in tally.device_keys})
    builds = read_builds(session, commit)
    return CommitDetail(commit, repository, device_keys, tallies, builds, unchanged, changes, has_parent)


def change_ids(session: Session, commit_id: int, listed: Sequence[CommitChange]) -> list[int]:
    """All changes that a commit has to do with. listed: those of its details, which are all but for very many."""
    return list_change_ids(session, commit_id) if len(listed) >= MAX_CHANGES else [row.regression.id for row in listed]


class _Side(NamedTuple):
    """One side of a comparison in one cell."""

    operator: str
    case: str
    variant: str
    status: str | None
    series_id: int | None
    median_ns: float | None
    low_ns: float | None
    high_ns: float | None
    trace_id: int | None


_SIDE = """
SELECT operators.name AS operator, cases.key AS case, variants.name AS variant, newest.status, newest.id, result_ids
FROM (
    SELECT operator_id, variant_id, case_id, array_agg(id) AS result_ids,
           max(id) FILTER (WHERE kind = 'bench') AS id,
           (array_agg(status ORDER BY id DESC) FILTER (WHERE kind = 'bench'))[1] AS status
    FROM results WHERE commit_id = :commit_id AND device_id = :device_id
    GROUP BY operator_id, variant_id, case_id
) AS newest
JOIN operators ON operators.id = newest.operator_id
JOIN cases ON cases.id = newest.case_id
JOIN variants ON variants.id = newest.variant_id
WHERE newest.id IS NOT NULL AND (CAST(:operator AS text) IS NULL OR operators.name = :operator)
ORDER BY operators.name, newest.case_id, newest.variant_id
"""


class CommitComparison(NamedTuple):
    """Rows, and per commit what it has from others: a commit has of an unchanged operator what was measured at the one
    whose sources those are.

    same: operators that both sides have from one commit, which is no comparison and has no rows.
    """

    rows: list[ComparedRow]
    unchanged: list[tuple[CommitRow, list[UnchangedRow]]]
    same: list[str]


def compare_commits(
    session: Session, left: CommitRow, right: CommitRow, device_id: int, metric: str, operator: str | None = None
) -> CommitComparison:
    """Every variant and case measured at either of two commits of one repository; ratio is right over left."""
    unchanged = [(commit, list_unchanged(session, commit.id)) for commit in (left, right)]
    one, other = ({row.operator: row.since_id for row in rows} for _, rows in unchanged)
    same = [name for name in sorted(one.keys() | other.keys()) if one.get(name, left.id) == other.get(name, right.id)]
    lefts, rights = (
        [side for side in _with_unchanged(session, *has, device_id, metric, operator) if side.operator not in same]
        for has in unchanged
    )
    keyed = {(side.operator, side.case, side.variant): side for side in rights}
    pairs = [(side, keyed.pop((side.operator, side.case, side.variant), None)) for side in lefts]
    rows = [_compared(before, after) for before, after in [*pairs, *((None, side) for side in keyed.values())]]
    return CommitComparison(rows, unchanged, same)


def compare_variants(
    session: Session,
    commit: CommitRow,
    left_variant: str,
    right_variant: str,
    device_id: int,
    metric: str,
    operator: str | None = None,
) -> CommitComparison:
    """Every case that either of two variants was measured on at one commit; ratio is right over left."""
    unchanged = list_unchanged(session, commit.id)
    sides = _with_unchanged(session, commit, unchanged, device_id, metric, operator)
    cells = dict.fromkeys((side.operator, side.case) for side in sides)
    keyed = {(side.operator, side.case, side.variant): side for side in sides}
    pairs = [(keyed.get((*cell, left_variant)), keyed.get((*cell, right_variant))) for cell in cells]
    rows = [_compared(left, right, left_variant, right_variant) for left, right in pairs if left or right]
    return CommitComparison(rows, [(commit, unchanged)], [])


def _with_unchanged(
    session: Session,
    commit: CommitRow,
    unchanged: list[UnchangedRow],
    device_id: int,
    metric: str,
    operator: str | None,
) -> list[_Side]:
    sides = _side(session, commit.id, device_id, metric, operator)
    elsewhere = {(row.since_id, row.operator) for row in unchanged}
    for since_id in sorted({since_id for since_id, _ in elsewhere}):
        sides += [
            one
            for one in _side(session, since_id, device_id, metric, operator)
            if (since_id, one.operator) in elsewhere
        ]
    return sides


def _side(session: Session, commit_id: int, device_id: int, metric: str, operator: str | None) -> list[_Side]:
    values = {"commit_id": commit_id, "device_id": device_id, "operator": operator}
    rows = session.execute(text(_SIDE), values).all()
    times = read_times(session, [row.id for row in rows], metric=metric)
    traces = read_traces(session, [id_ for row in rows for id_ in row.result_ids])
    sides = []
    for row in rows:
        time = times.get(row.id)
        trace_id = newest_trace(traces, row.result_ids)
        names = row.operator, row.case, row.variant, row.status
        if time is None:
            sides.append(_Side(*names, None, None, None, None, trace_id))
        else:
            sides.append(_Side(*names, time.series_id, time.median_ns, time.low_ns, time.high_ns, trace_id))
    return sides


def _compared(left: _Side | None, right: _Side | None, left_variant: str = "", right_variant: str = "") -> ComparedRow:
    known: Any = left or right
    low, high = _ratio_interval(left, right)
    return ComparedRow(
        operator=known.operator,
        case=known.case,
        left_variant=left_variant or known.variant,
        right_variant=right_variant or known.variant,
        left_status=left.status if left else None,
        right_status=right.status if right else None,
        left_ns=left.median_ns if left else None,
        right_ns=right.median_ns if right else None,
        ratio=right.median_ns / left.median_ns if left and right and left.median_ns and right.median_ns else None,
        separated=_separated(left, right),
        left_series_id=left.series_id if left else None,
        right_series_id=right.series_id if right else None,
        left_trace_id=left.trace_id if left else None,
        right_trace_id=right.trace_id if right else None,
        low=low,
        high=high,
    )


def _ratio_interval(left: _Side | None, right: _Side | None) -> tuple[float | None, float | None]:
    """The least and the largest ratio of right over left that both intervals allow."""
    if left and right and left.low_ns and left.high_ns and right.low_ns and right.high_ns:
        return right.low_ns / left.high_ns, right.high_ns / left.low_ns
    return None, None


def _separated(left: _Side | None, right: _Side | None) -> bool:
    if left is None or right is None or None in (left.low_ns, left.high_ns, right.low_ns, right.high_ns):
        return False
    return bool(left.high_ns < right.low_ns or right.high_ns < left.low_ns)  # type: ignore[operator]
