"""Reads everything known about one commit, and compares two commits or two variants."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import text

from warpwatch.contract.spec import JobSpec
from warpwatch.db.reads.builds import BuildView, read_builds
from warpwatch.db.reads.code import CommitRow, UnchangedRow, find_commit, list_unchanged
from warpwatch.db.reads.lines import ALL_COMMITS, HistoryLine, on_line, read_line_of, share_line
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
    """Left and right may be two commits of one variant or two variants of one commit; ratio is right over left.

    low, high: the ratios that both 95 % intervals allow.
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


_VARIANT, _CASE = "\1", "\2"
"""Stand for a variant and a case in a command."""
quote = lru_cache(10_000)(shlex.quote)
MAX_CHANGES = 50
"""Changes of one commit that are listed, worst first."""

_CELLS = """
WITH newest AS (
    SELECT DISTINCT ON (operator_id, variant_id, case_id, device_id, kind)
           id, operator_id, variant_id, case_id, device_id, kind, status, message, run_id
    FROM results WHERE commit_id = :commit_id
    ORDER BY operator_id, variant_id, case_id, device_id, kind, id DESC
), cells AS (
    SELECT operator_id, variant_id, case_id, device_id, array_agg(id) AS result_ids,
           max(id) FILTER (WHERE kind = 'check') AS check_id, max(id) FILTER (WHERE kind = 'bench') AS bench_id,
           max(status) FILTER (WHERE kind = 'check') AS check_status,
           max(status) FILTER (WHERE kind = 'bench') AS bench_status,
           max(status) FILTER (WHERE kind = 'profile') AS profile_status,
           max(message) FILTER (WHERE kind = 'check') AS check_message,
           max(message) FILTER (WHERE kind = 'bench') AS bench_message,
           coalesce(max(run_id) FILTER (WHERE kind = 'check'), max(run_id) FILTER (WHERE kind = 'bench')) AS run_id
    FROM newest GROUP BY operator_id, variant_id, case_id, device_id
)
SELECT operators.name AS operator, cases.key AS case, variants.name AS variant, device.key AS device_key,
       cells.check_status, coalesce(cells.check_message, '') AS check_message, cells.check_id AS check_result_id,
       cells.bench_status, coalesce(cells.bench_message, '') AS bench_message, cells.bench_id AS bench_result_id,
       cells.profile_status, device.kind AS device_kind, cells.run_id, cells.result_ids
FROM cells
JOIN operators ON operators.id = cells.operator_id
JOIN cases ON cases.id = cells.case_id
JOIN variants ON variants.id = cells.variant_id
JOIN devices AS device ON device.id = cells.device_id
ORDER BY operators.name, cells.case_id, cells.variant_id, device.key
"""


class _Time(NamedTuple):
    """What a bench measured. change: over the point before in its series."""

    series_id: int
    median_ns: float
    low_ns: float
    high_ns: float
    change: float | None


_NO_TIME: dict[str, Any] = dict.fromkeys(_Time._fields)


def _read_times(
    session: Session, result_ids: list[int], line: HistoryLine = ALL_COMMITS, metric: str | None = None
) -> dict[int, _Time]:
    """Times by result, in one metric, or in the first of each device. Changes are over the point before on the line.

    The ids are given as a list and not as a query: PostgreSQL then knows how many there are.
    """
    sql = f"""
    SELECT timed.result_id, timed.series_id, timed.median_ns, low_ns, high_ns,
           timed.median_ns / nullif(previous.median_ns, 0) AS change
    FROM (
        SELECT DISTINCT ON (points.result_id) points.*
        FROM points JOIN series ON series.id = points.series_id JOIN devices AS device ON device.id = series.device_id
        WHERE points.result_id = ANY(:ids) AND series.metric = coalesce(CAST(:metric AS text), {PRIMARY_METRIC})
        ORDER BY points.result_id, points.id DESC
    ) AS timed
    LEFT JOIN LATERAL (
        SELECT median_ns FROM points WHERE points.series_id = timed.series_id AND points.ordinal < timed.ordinal
          AND {on_line("points.commit_id")}
        ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
    ) AS previous ON CAST(:metric AS text) IS NULL
    """
    rows = session.execute(text(sql), {"ids": result_ids, "metric": metric, **line.parameters})
    return {result_id: _Time(*values) for result_id, *values in rows}


def _read_traces(session: Session, result_ids: list[int]) -> dict[int, int]:
    """The newest trace of each result that has one."""
    sql = "SELECT result_id, max(id) FROM traces WHERE result_id = ANY(:ids) GROUP BY result_id"
    return {row[0]: row[1] for row in session.execute(text(sql), {"ids": result_ids})}


def _newest_trace(traces: dict[int, int], result_ids: list[int]) -> int | None:
    return max((traces[result_id] for result_id in result_ids if result_id in traces), default=None)


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

    rows = session.execute(text(_CELLS), {"commit_id": commit.id}).mappings().all()
    specs = _read_specs(session, {row["run_id"] for row in rows})
    line = read_line_of(session, commit.id) or ALL_COMMITS
    benched = [row["bench_result_id"] for row in rows if row["bench_result_id"] is not None]
    times = _read_times(session, benched, line)
    traces = _read_traces(session, [result_id for row in rows for result_id in row["result_ids"]])
    commands: dict[tuple[Any, ...], str] = {}

    def cell(device_kind: str, run_id: int | None, result_ids: list[int], **fields: Any) -> CommitCell:
        kind = "bench" if fields["check_status"] in (None, "ok") and fields["bench_status"] is not None else "check"
        # The commands of a run differ in the cell alone, and a page has thousands of cells.
        key = (run_id, kind, fields["operator"], device_kind)
        if key not in commands:
            one_cell = specs.get(run_id, JobSpec()).of_cell(_VARIANT, _CASE)
            commands[key] = shlex.join(one_cell.to_command(kind, commit.sha, fields["operator"], device_kind))
        replay = commands[key].replace(shlex.quote(_VARIANT), quote(fields["variant"]))
        replay = replay.replace(shlex.quote(_CASE), quote(fields["case"]))
        time = times.get(fields["bench_result_id"])
        measured = time._asdict() if time is not None else _NO_TIME
        return CommitCell(**fields, **measured, trace_id=_newest_trace(traces, result_ids), replay=replay)

    def change(role: str, **columns: Any) -> CommitChange:
        return CommitChange(CommitRole(role), RegressionRow(**columns))

    cells = [cell(**row) for row in rows]
    changes = fetch(session, change, _CHANGES, commit_id=commit.id)
    unchanged = list_unchanged(session, commit.id)
    return CommitDetail(commit, repository, cells, read_builds(session, commit), unchanged, changes)


def _read_specs(session: Session, run_ids: set[int | None]) -> dict[int | None, JobSpec]:
    """What the jobs of the runs asked for, by run."""
    sql = "SELECT runs.id AS run_id, spec FROM runs JOIN jobs ON jobs.id = runs.job_id WHERE runs.id = ANY(:ids)"
    ids = [run_id for run_id in run_ids if run_id is not None]
    return dict(fetch(session, lambda run_id, spec: (run_id, spec), sql, ids=ids))


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
    times = _read_times(session, [row.id for row in rows], metric=metric)
    traces = _read_traces(session, [id_ for row in rows for id_ in row.result_ids])
    sides = []
    for row in rows:
        time = times.get(row.id)
        trace_id = _newest_trace(traces, row.result_ids)
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
