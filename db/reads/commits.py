"""Reads everything known about one commit, and compares two commits or two variants."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from warpwatch.contract.spec import JobSpec
from warpwatch.db.reads.builds import BuildView, read_builds
from warpwatch.db.reads.code import CommitRow, UnchangedRow, find_commit, list_unchanged
from warpwatch.db.reads.lines import ALL_COMMITS, read_line_of, share_line
from warpwatch.db.reads.query import PRIMARY_METRIC, Session, fetch, fetch_scalar
from warpwatch.db.reads.regressions import (
    COLUMNS,
    COMMITS_BETWEEN,
    CULPRIT,
    IS_OPEN,
    RANK,
    SEVERITY,
    TABLES,
    RegressionRow,
)


@dataclass(frozen=True, slots=True)
class CommitCell:
    """One variant on one case on one device at one commit: right or wrong, time, change, trace."""

    operator: str
    case: str
    variant: str
    device_key: str
    check_status: str | None
    check_message: str
    check_result_id: int | None
    bench_status: str | None
    bench_message: str
    bench_result_id: int | None
    profile_status: str | None
    series_id: int | None
    median_ns: float | None
    low_ns: float | None
    high_ns: float | None
    change: float | None
    trace_id: int | None
    replay: str = ""
    """A command that checks it again in a checkout, or times it where that is what went wrong, without a server."""


@dataclass(frozen=True, slots=True)
class CulpritRow:
    """An open change that trials found a commit to have caused."""

    sha: str
    regression_id: int
    operator: str
    direction: str
    ratio: float | None


def list_culprits(session: Session, commit_ids: Sequence[int]) -> list[CulpritRow]:
    """The open changes that these commits caused, the largest first."""
    sql = f"""
    SELECT head.sha, regressions.id AS regression_id, operators.name AS operator, direction, ratio
    FROM {TABLES} WHERE head.id = ANY(:ids) AND {IS_OPEN} AND ({CULPRIT}) IS NOT NULL
    ORDER BY {RANK} DESC, {SEVERITY} DESC, regressions.id
    """
    return fetch(session, CulpritRow, sql, ids=list(commit_ids))


class CommitRole(StrEnum):
    """What a commit has to do with a change. cause: it is the one. candidate: one of several that may be. fix: it ended
    the change."""

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
    commit: CommitRow
    repository: str
    cells: list[CommitCell]
    builds: list[BuildView]
    unchanged: list[UnchangedRow]
    changes: list[CommitChange]


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """Left and right may be two commits of one variant or two variants of one commit; ratio is right over left."""

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


MAX_CHANGES = 50
"""Changes of one commit that are listed, worst first."""

_CELLS = f"""
WITH newest AS (
    SELECT DISTINCT ON (operator_id, variant_id, case_id, device_id, kind)
           id, operator_id, variant_id, case_id, device_id, kind, status, message
    FROM results WHERE commit_id = :commit_id
    ORDER BY operator_id, variant_id, case_id, device_id, kind, id DESC
), cells AS (
    SELECT operator_id, variant_id, case_id, device_id,
           max(id) FILTER (WHERE kind = 'check') AS check_id, max(id) FILTER (WHERE kind = 'bench') AS bench_id,
           max(id) FILTER (WHERE kind = 'profile') AS profile_id, array_agg(id) AS result_ids
    FROM newest GROUP BY operator_id, variant_id, case_id, device_id
)
SELECT operators.name AS operator, cases.key AS case, variants.name AS variant, device.key AS device_key,
       checked.status AS check_status, coalesce(checked.message, '') AS check_message,
            cells.check_id AS check_result_id,
       benched.status AS bench_status, coalesce(benched.message, '') AS bench_message,
            cells.bench_id AS bench_result_id,
       profiled.status AS profile_status,
       point.series_id, point.median_ns, point.low_ns, point.high_ns,
       point.median_ns / nullif(previous.median_ns, 0) AS change,
       (SELECT max(id) FROM traces WHERE result_id = ANY(cells.result_ids)) AS trace_id, device.kind AS device_kind,
       (SELECT spec FROM jobs JOIN runs ON runs.job_id = jobs.id WHERE runs.id = coalesce(checked.run_id,
            benched.run_id)) AS spec
FROM cells
JOIN operators ON operators.id = cells.operator_id
JOIN cases ON cases.id = cells.case_id
JOIN variants ON variants.id = cells.variant_id
JOIN devices AS device ON device.id = cells.device_id
LEFT JOIN results AS checked ON checked.id = cells.check_id
LEFT JOIN results AS benched ON benched.id = cells.bench_id
LEFT JOIN results AS profiled ON profiled.id = cells.profile_id
LEFT JOIN LATERAL (
    SELECT series_id, ordinal, median_ns, low_ns, high_ns FROM points JOIN series ON series.id = points.series_id
    WHERE points.result_id = cells.bench_id AND series.metric = {PRIMARY_METRIC} ORDER BY points.id DESC LIMIT 1
) AS point ON true
LEFT JOIN LATERAL (
    SELECT median_ns FROM points WHERE points.series_id = point.series_id AND points.ordinal < point.ordinal
    ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
) AS previous ON true
ORDER BY operators.name, cells.case_id, cells.variant_id, device.key
"""


_CHANGES = f"""
SELECT {COLUMNS},
       CASE WHEN regressions.fixed_by_commit_id = :commit_id THEN '{CommitRole.FIX}'
            WHEN head.id = :commit_id AND {COMMITS_BETWEEN} = 0 THEN '{CommitRole.CAUSE}'
            ELSE '{CommitRole.CANDIDATE}' END AS role
FROM {TABLES} JOIN commits AS this ON this.id = :commit_id
WHERE operators.repository_id = this.repository_id AND verdict IN ('confirmed', 'suspected') AND state <> 'invalid'
  AND (regressions.fixed_by_commit_id = :commit_id
       OR (base.ordinal < this.ordinal AND this.ordinal <= head.ordinal AND {share_line("this.id", "head.id")}))
ORDER BY verdict = 'suspected', {RANK} DESC, {SEVERITY} DESC, regressions.id LIMIT {MAX_CHANGES}
"""


def read_commit(session: Session, repository_id: int, sha: str) -> CommitDetail | None:
    """Every variant and case tried at a commit, given by its id or a unique prefix of it; None when it is unknown."""
    commit = find_commit(session, repository_id, sha)
    if commit is None:
        return None
    repository = fetch_scalar(session, "SELECT name FROM repositories WHERE id = :id", id=repository_id)

    def cell(device_kind: str, spec: JobSpec | None, **fields: Any) -> CommitCell:
        kind = "bench" if fields["check_status"] in (None, "ok") and fields["bench_status"] is not None else "check"
        one_cell = (spec or JobSpec()).of_cell(fields["variant"], fields["case"])
        command = one_cell.to_command(kind, commit.sha, fields["operator"], device_kind)
        return CommitCell(replay=shlex.join(command), **fields)

    def change(role: str, **columns: Any) -> CommitChange:
        return CommitChange(CommitRole(role), RegressionRow(**columns))

    line = read_line_of(session, commit.id) or ALL_COMMITS
    cells = fetch(session, cell, _CELLS, commit_id=commit.id, **line.parameters)
    changes = fetch(session, change, _CHANGES, commit_id=commit.id)
    unchanged = list_unchanged(session, commit.id)
    return CommitDetail(commit, repository, cells, read_builds(session, commit), unchanged, changes)


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
SELECT operators.name AS operator, cases.key AS case, variants.name AS variant, newest.status,
       point.series_id, point.median_ns, point.low_ns, point.high_ns,
       (SELECT max(traces.id) FROM traces JOIN results AS profiled ON profiled.id = traces.result_id
        WHERE profiled.commit_id = :commit_id AND profiled.device_id = :device_id
             AND profiled.operator_id = newest.operator_id
          AND profiled.variant_id = newest.variant_id AND profiled.case_id = newest.case_id) AS trace_id
FROM (
    SELECT DISTINCT ON (operator_id, variant_id, case_id) id, operator_id, variant_id, case_id, status
    FROM results WHERE commit_id = :commit_id AND device_id = :device_id AND kind = 'bench'
    ORDER BY operator_id, variant_id, case_id, id DESC
) AS newest
JOIN operators ON operators.id = newest.operator_id
JOIN cases ON cases.id = newest.case_id
JOIN variants ON variants.id = newest.variant_id
LEFT JOIN LATERAL (
    SELECT series_id, median_ns, low_ns, high_ns FROM points JOIN series ON series.id = points.series_id
    WHERE points.result_id = newest.id AND series.metric = :metric ORDER BY points.id DESC LIMIT 1
) AS point ON true
WHERE (CAST(:operator AS text) IS NULL OR operators.name = :operator)
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
    return fetch(session, _Side, _SIDE, commit_id=commit_id, device_id=device_id, metric=metric, operator=operator)


def _compared(left: _Side | None, right: _Side | None, left_variant: str = "", right_variant: str = "") -> ComparedRow:
    known: Any = left or right
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
    )


def _separated(left: _Side | None, right: _Side | None) -> bool:
    if left is None or right is None or None in (left.low_ns, left.high_ns, right.low_ns, right.high_ns):
        return False
    return bool(left.high_ns < right.low_ns or right.high_ns < left.low_ns)  # type: ignore[operator]
