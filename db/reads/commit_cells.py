"""Reads the cells of a commit: every variant on every case on every device that it was tried on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.spec import DefinitionsVersion, JobSpec
from warpwatch.db.reads.code import CommitRow, definitions_version
from warpwatch.db.reads.lines import ALL_COMMITS, HistoryLine, on_line, share_line
from warpwatch.db.reads.query import IS_DEVICE_TIME, MAX_PAGE, PRIMARY_METRIC, Page, fetch, page_of
from warpwatch.db.regressions import TABLES


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
    id: int = 0
    """Of its newest result."""
    is_failing: bool = False
    is_changed: bool = False
    """True when a suspected or confirmed change that the commit has to do with contains it."""
    compared: float | None = None
    """The ratio of that change in its A/B comparison, if the commit caused or may have caused it."""
    compared_low: float | None = None
    compared_high: float | None = None
    """The 95 % interval of that ratio."""
    launch_series_id: int | None = None
    """Of the host's time of a call, where that was measured beside the device's."""
    changed_series_id: int | None = None
    """Series of that change; A/B rounds may decide it at a commit that has no time of its own."""

    @property
    def stated_series_id(self) -> int:
        """The series that says what became of the cell; 0 without any."""
        return self.series_id or self.changed_series_id or 0


class CellFilter(StrEnum):
    """Which cells of a commit are listed."""

    ALL = "all"
    PROBLEMS = "problems"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class OperatorTally:
    """How many cells of an operator were tried at a commit. right, wrong: by their newest check."""

    operator: str
    cells: int
    failing: int
    changed: int
    right: int
    wrong: int
    device_keys: list[str]


_VARIANT, _CASE = "\1", "\2"
"""Stand for a variant and a case in a command."""
quote = lru_cache(10_000)(shlex.quote)
CHANGES_AT = f"""
FROM {TABLES} JOIN commits AS this ON this.id = :commit_id
WHERE operators.repository_id = this.repository_id AND verdict IN ('confirmed', 'suspected') AND state <> 'invalid'
  AND (regressions.fixed_by_commit_id = :commit_id OR regressions.merged_head_commit_id = :commit_id
       OR (base.ordinal < this.ordinal AND this.ordinal <= head.ordinal AND {share_line("this.id", "head.id")}))
"""
"""SQL: the changes that a commit caused, may have caused, or ended."""

# The ids of changes are given as a list and not as a query, which would be planned as if it found most of them.
_KEYS = """
WITH newest AS (
    SELECT DISTINCT ON (operator_id, variant_id, case_id, device_id, kind)
           id, operator_id, variant_id, case_id, device_id, kind, status
    FROM results WHERE commit_id = :commit_id
    ORDER BY operator_id, variant_id, case_id, device_id, kind, id DESC
), changed AS (
    SELECT variant_id, case_id, series.device_id,
           (array_agg(ARRAY[regression_series.ratio, regression_series.low, regression_series.high]
                      ORDER BY abs(ln(regression_series.ratio)) DESC)
                FILTER (WHERE regressions.fixed_by_commit_id IS DISTINCT FROM :commit_id
                        AND regression_series.verdict = 'confirmed' AND regression_series.ratio > 0
                        AND series.metric <> 'launch'))[1:1] AS compared,
           (array_agg(series.id ORDER BY abs(ln(coalesce(nullif(regression_series.ratio, 0), 1))) DESC, series.id)
                FILTER (WHERE series.metric <> 'launch'))[1] AS changed_series_id
    FROM regressions JOIN regression_series ON regression_series.regression_id = regressions.id
    JOIN series ON series.id = regression_series.series_id
    WHERE regressions.id = ANY(:changes)
    GROUP BY variant_id, case_id, series.device_id
), keys AS (
    SELECT operators.name AS operator, variant_id, case_id, device.key AS device_key, device.kind AS device_kind,
           max(newest.id) AS id, array_agg(newest.id) AS result_ids,
           max(status) FILTER (WHERE newest.kind = 'check') AS check_status,
           bool_or(status NOT IN ('ok', 'unsupported', 'skipped')) AS is_failing,
           (variant_id, case_id, device.id) IN (SELECT variant_id, case_id, device_id FROM changed) AS is_changed
    FROM newest JOIN operators ON operators.id = newest.operator_id JOIN devices AS device ON device.id = device_id
    GROUP BY operators.id, operators.name, variant_id, case_id, device.id, device.key, device.kind
)
"""
_TALLIES = f"""{_KEYS}
SELECT operator, count(*) AS cells, count(*) FILTER (WHERE is_failing) AS failing,
       count(*) FILTER (WHERE is_changed) AS changed, count(*) FILTER (WHERE check_status = 'ok') AS right,
       count(*) FILTER (WHERE check_status = 'wrong') AS wrong, array_agg(DISTINCT device_key) AS device_keys
FROM keys GROUP BY operator ORDER BY operator
"""
# No number holds the order of cells, so a page begins after the place of the cell `before`.
_CELLS = f"""{_KEYS}, ordered AS (
    SELECT keys.*, row_number() OVER (
        ORDER BY NOT is_failing, NOT is_changed, operator, case_id, variant_id, device_key) AS place
    FROM keys
    WHERE (CAST(:operator AS text) IS NULL OR operator = :operator)
      AND (:show <> '{CellFilter.PROBLEMS}' OR is_failing) AND (:show <> '{CellFilter.CHANGED}' OR is_changed)
), page AS (
    SELECT * FROM ordered
    WHERE CAST(:before AS bigint) IS NULL OR place > (SELECT place FROM ordered WHERE id = :before)
    ORDER BY place LIMIT :limit
)
SELECT page.id, operator, cases.key AS case, variants.name AS variant, device_key, device_kind, is_failing, is_changed,
       cell.*, (SELECT max(traces.id) FROM traces WHERE result_id = ANY(page.result_ids)) AS trace_id,
       compared[1][1] AS compared, compared[1][2] AS compared_low, compared[1][3] AS compared_high,
       changed_series_id
FROM page JOIN cases ON cases.id = page.case_id JOIN variants ON variants.id = page.variant_id
LEFT JOIN LATERAL (
    SELECT compared, changed_series_id FROM changed JOIN devices ON devices.id = changed.device_id
    WHERE changed.variant_id = page.variant_id AND changed.case_id = page.case_id AND devices.key = page.device_key
) AS outcome ON true
CROSS JOIN LATERAL (
    SELECT max(id) FILTER (WHERE kind = 'check') AS check_result_id,
           max(id) FILTER (WHERE kind = 'bench') AS bench_result_id,
           max(status) FILTER (WHERE kind = 'check') AS check_status,
           max(status) FILTER (WHERE kind = 'bench') AS bench_status,
           max(status) FILTER (WHERE kind = 'profile') AS profile_status,
           coalesce(max(message) FILTER (WHERE kind = 'check'), '') AS check_message,
           coalesce(max(message) FILTER (WHERE kind = 'bench'), '') AS bench_message,
           coalesce(max(run_id) FILTER (WHERE kind = 'check'), max(run_id) FILTER (WHERE kind = 'bench')) AS run_id
    FROM results WHERE id = ANY(page.result_ids)
) AS cell
ORDER BY place
"""


def list_change_ids(session: Session, commit_id: int) -> list[int]:
    """The changes that a commit caused, may have caused, or ended."""
    return list(session.execute(text(f"SELECT regressions.id {CHANGES_AT}"), {"commit_id": commit_id}).scalars())


def count_cells(session: Session, commit_id: int, changes: Sequence[int]) -> list[OperatorTally]:
    """The operators that were tried at a commit, by name. changes: as of `list_change_ids`."""
    return fetch(session, OperatorTally, _TALLIES, commit_id=commit_id, changes=list(changes))


def list_cells(
    session: Session,
    commit: CommitRow,
    line: HistoryLine,
    show: CellFilter = CellFilter.ALL,
    operator: str | None = None,
    before: int | None = None,
    limit: int = MAX_PAGE,
    changes: Sequence[int] | None = None,
) -> Page[CommitCell]:
    """Every variant on every case tried at a commit: first what fails, then what changed, by operator.

    line: that the commit is on. before: id of the last cell of the page before. changes: as of `list_change_ids`, which
    are read by default.
    """
    size = max(1, min(limit, MAX_PAGE))
    asked = {"commit_id": commit.id, "show": show, "operator": operator, "before": before, "limit": size + 1}
    return page_of(_read_cells(session, commit, line, asked, changes), size)


def list_all_cells(session: Session, commit: CommitRow, line: HistoryLine) -> list[CommitCell]:
    """All of them, for a file."""
    asked = {"commit_id": commit.id, "show": CellFilter.ALL, "operator": None, "before": None, "limit": None}
    return _read_cells(session, commit, line, asked, None)


def _read_cells(
    session: Session, commit: CommitRow, line: HistoryLine, asked: Mapping[str, Any], changes: Sequence[int] | None
) -> list[CommitCell]:
    """The cells asked for, with their times, traces and commands."""
    ids = list_change_ids(session, commit.id) if changes is None else list(changes)
    rows = session.execute(text(_CELLS), {**asked, "changes": ids}).mappings().all()
    specs = _read_specs(session, {row["run_id"] for row in rows})
    times = read_times(session, [row["bench_result_id"] for row in rows if row["bench_result_id"] is not None], line)
    commands: dict[tuple[Any, ...], str] = {}

    def cell(device_kind: str, run_id: int | None, **fields: Any) -> CommitCell:
        kind = "bench" if fields["check_status"] in (None, "ok") and fields["bench_status"] is not None else "check"
        # The commands of a run differ in the cell alone, and a file has thousands of cells.
        key = (run_id, kind, fields["operator"], device_kind)
        if key not in commands:
            spec, definitions = specs.get(run_id, (JobSpec(), None))
            words = spec.of_cell(_VARIANT, _CASE).to_command(
                kind, commit.sha, fields["operator"], device_kind, definitions=definitions
            )
            commands[key] = shlex.join(words)
        replay = commands[key].replace(shlex.quote(_VARIANT), quote(fields["variant"]))
        replay = replay.replace(shlex.quote(_CASE), quote(fields["case"]))
        time = times.get(fields["bench_result_id"])
        measured = time._asdict() if time is not None else _NO_TIME
        return CommitCell(**fields, **measured, replay=replay)

    return [cell(**row) for row in rows]


def _read_specs(
    session: Session, run_ids: set[int | None]
) -> dict[int | None, tuple[JobSpec, DefinitionsVersion | None]]:
    """The specification of the job and the version of the operator's definitions of each run, by id of the run."""
    sql = """
    SELECT runs.id AS run_id, spec, definitions_url AS url, jobs.definitions_sha AS sha
    FROM runs JOIN jobs ON jobs.id = runs.job_id JOIN operators ON operators.id = jobs.operator_id
    JOIN repositories ON repositories.id = operators.repository_id WHERE runs.id = ANY(:ids)
    """
    ids = [run_id for run_id in run_ids if run_id is not None]
    rows = fetch(session, lambda run_id, spec, url, sha: (run_id, (spec, definitions_version(url, sha))), sql, ids=ids)
    return dict(rows)


class _Time(NamedTuple):
    """Times of a bench in one series. change: over the previous point of the series. launch_series_id: as in
    CommitCell."""

    series_id: int
    median_ns: float
    low_ns: float
    high_ns: float
    change: float | None
    launch_series_id: int | None = None


_NO_TIME: dict[str, Any] = dict.fromkeys(_Time._fields)


def read_times(
    session: Session, result_ids: list[int], line: HistoryLine = ALL_COMMITS, metric: str | None = None
) -> dict[int, _Time]:
    """Times by result, in one metric, or in that of the device's time. Changes are over the point before on the line.

    The ids are given as a list and not as a query: PostgreSQL then knows how many there are.
    """
    sql = f"""
    SELECT timed.result_id, timed.series_id, timed.median_ns, low_ns, high_ns,
           timed.median_ns / nullif(previous.median_ns, 0) AS change,
           (SELECT points.series_id FROM points JOIN series ON series.id = points.series_id
            WHERE points.result_id = timed.result_id AND series.metric = 'launch' LIMIT 1) AS launch_series_id
    FROM (
        SELECT DISTINCT ON (points.result_id) points.*
        FROM points JOIN series ON series.id = points.series_id JOIN devices AS device ON device.id = series.device_id
        WHERE points.result_id = ANY(:ids)
          AND (CASE WHEN CAST(:metric AS text) IS NULL THEN {IS_DEVICE_TIME} ELSE series.metric = :metric END)
        ORDER BY points.result_id, series.metric = {PRIMARY_METRIC} DESC, points.id DESC
    ) AS timed
    LEFT JOIN LATERAL (
        SELECT median_ns FROM points WHERE points.series_id = timed.series_id AND points.ordinal < timed.ordinal
          AND (points.card_id IS NULL OR timed.card_id IS NULL OR points.card_id = timed.card_id)
          AND {on_line("points.commit_id")}
        ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
    ) AS previous ON CAST(:metric AS text) IS NULL
    """
    rows = session.execute(text(sql), {"ids": result_ids, "metric": metric, **line.parameters})
    return {result_id: _Time(*values) for result_id, *values in rows}


def read_traces(session: Session, result_ids: list[int]) -> dict[int, int]:
    """The newest trace of each result that has one."""
    sql = "SELECT result_id, max(id) FROM traces WHERE result_id = ANY(:ids) GROUP BY result_id"
    return {row[0]: row[1] for row in session.execute(text(sql), {"ids": result_ids})}


def newest_trace(traces: dict[int, int], result_ids: list[int]) -> int | None:
    return max((traces[result_id] for result_id in result_ids if result_id in traces), default=None)
