"""Reads what jobs measured, for verdicts to be drawn from: readings along history, checks around a commit, paired
rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.rounds import CellRounds
from warpwatch.contract.words import Reason
from warpwatch.db.muted import IS_MUTED
from warpwatch.db.reads.query import IS_JUDGED, fetch

BEFORE, AFTER = 128, 32
"""Readings of a series on either side of a new point that are looked at."""
ELSEWHERE = 8
"""Earlier ones in other environments, of which the nearest on the same line of history counts."""
RELEASES, AT_RELEASE = 8, 8
"""Releases that a series is held against, and readings of each that its level is taken from."""
MOST_TASKS = 1e6
"""Runnable tasks from which on a load is no load."""
BAD = ("wrong", "crashed", "timed_out", "out_of_memory", "build_failed", "unreadable")
"""Statuses of a check that say that something is broken; unsupported and skipped say nothing."""
NEWEST_RUN = "(SELECT max(id) FROM runs WHERE job_id = :job_id AND state = 'done')"
"""The id of a job's newest run that came to its end, as SQL."""


@dataclass(frozen=True, slots=True)
class ObservedReading:
    """A right point of a series to which a job added one. Durations in nanoseconds."""

    series_id: int
    variant: str
    case: str
    environment_id: int
    commit_id: int
    sha: str
    ordinal: int
    median_ns: float
    low_ns: float
    high_ns: float
    card_id: int | None = None
    """The physical card that took it; None where that is not known."""
    measured_at: datetime = datetime.min
    metric: str = ""
    protocol: str = ""
    host: Sequence[Any] | None = None
    """Load and cores of the host of a CPU, before and after; None of a GPU. Read by a worker, so anything may be there.
    """

    @property
    def load(self) -> float | None:
        """Runnable tasks per core of the host, the larger number of before and after; None where it is not known."""
        host = self.host or ()
        loads = [
            load / cores
            for load, cores in zip(host[::2], host[1::2], strict=False)
            if isinstance(load, int | float) and 0 <= load < MOST_TASKS and isinstance(cores, int) and cores > 0
        ]
        return max(loads, default=None)


@dataclass(frozen=True, slots=True)
class ReleaseReading:
    """A right point of a series at a release or just before it, in the environment of a new point. A release is a
    commit with a tag."""

    series_id: int
    release_sha: str
    release_ordinal: int
    commit_id: int
    sha: str
    ordinal: int
    median_ns: float
    card_id: int | None


@dataclass(frozen=True, slots=True)
class CheckRow:
    """Result of a check of one variant on one case at one commit."""

    variant_id: int
    case_id: int
    variant: str
    case: str
    commit_id: int
    sha: str
    ordinal: int
    status: str


@dataclass(frozen=True, slots=True)
class RoundsRow:
    """Rounds of a compare job in one series, a metric of a variant on a case; base_ns[i] and head_ns[i] were measured
    beside each other. cells: of a job that measured two commits under two toolchains."""

    series_id: int
    status: str
    message: str
    reason: Reason | None
    base_ns: list[float]
    head_ns: list[float]
    metric: str = ""
    variant_id: int = 0
    case_id: int = 0
    variant: str = ""
    case: str = ""
    protocol: str = ""
    cells: CellRounds | None = None


def _side(environment: str, ordinal: str, order: str, limit: int) -> str:
    """SQL for the right points of a series whose environment and ordinal compare so with those of a new point, the
    nearest first."""
    return f"""
    (SELECT points.*, results.details -> 'health' AS health FROM points JOIN results ON results.id = points.result_id
     WHERE points.series_id = new.series_id AND points.environment_id {environment} new.environment_id
       AND points.ordinal {ordinal} new.ordinal AND results.status = 'ok'
     ORDER BY points.ordinal {order}, points.id {order} LIMIT {limit})
    """


_READINGS = f"""
SELECT new.series_id, variants.name AS variant, cases.key AS case, near.environment_id, near.commit_id, commits.sha,
     near.ordinal,
       near.median_ns, near.low_ns, near.high_ns, near.card_id, near.measured_at, series.metric, series.protocol,
       CASE WHEN device.kind = 'cpu' THEN jsonb_build_array(
           near.health #> '{{before,load}}', near.health #> '{{before,cores}}', near.health #> '{{after,load}}',
           near.health #> '{{after,cores}}') END AS host
FROM results
JOIN points AS new ON new.result_id = results.id
JOIN series ON series.id = new.series_id
JOIN devices AS device ON device.id = results.device_id
JOIN variants ON variants.id = results.variant_id
JOIN cases ON cases.id = results.case_id
CROSS JOIN LATERAL ({_side("=", "<=", "DESC", BEFORE)} UNION ALL {_side("=", ">", "ASC", AFTER)}
                    UNION ALL {_side("<>", "<", "DESC", ELSEWHERE)}) AS near
JOIN commits ON commits.id = near.commit_id
WHERE results.run_id = {NEWEST_RUN} AND results.status = 'ok' AND {IS_JUDGED}
  AND NOT {IS_MUTED.format("series.id")}
ORDER BY new.series_id, near.ordinal, near.id
"""


def list_readings(session: Session, job_id: int) -> list[ObservedReading]:
    """The readings around every right point that a bench job's newest run added in a judged metric, by series, oldest
    commit first.

    Those of its own environment, and the nearest earlier ones of others. Muted series are left out.
    """
    return fetch(session, ObservedReading, _READINGS, job_id=job_id)


_RELEASES = f"""
SELECT new.series_id, release.sha AS release_sha, release.ordinal AS release_ordinal, near.commit_id, commits.sha,
       near.ordinal, near.median_ns, near.card_id
FROM results
JOIN points AS new ON new.result_id = results.id
JOIN series ON series.id = new.series_id
JOIN devices AS device ON device.id = results.device_id
JOIN commits AS head ON head.id = new.commit_id
CROSS JOIN LATERAL (
    SELECT sha, ordinal FROM commits
    WHERE commits.repository_id = head.repository_id AND tags <> '[]' AND commits.ordinal < new.ordinal
    ORDER BY commits.ordinal DESC LIMIT {RELEASES}
) AS release
CROSS JOIN LATERAL (
    SELECT points.* FROM points JOIN results ON results.id = points.result_id
    WHERE points.series_id = new.series_id AND points.environment_id = new.environment_id
      AND points.ordinal <= release.ordinal AND results.status = 'ok'
    ORDER BY points.ordinal DESC, points.id DESC LIMIT {AT_RELEASE}
) AS near
JOIN commits ON commits.id = near.commit_id
WHERE results.run_id = {NEWEST_RUN} AND results.status = 'ok' AND {IS_JUDGED}
  AND NOT {IS_MUTED.format("series.id")}
ORDER BY new.series_id, release.ordinal, near.ordinal, near.id
"""


def list_release_readings(session: Session, job_id: int) -> list[ReleaseReading]:
    """The measurements at the newest releases before a bench job, of every series to which the job's newest run added a
    right point in a judged metric; by series and release, oldest first."""
    return fetch(session, ReleaseReading, _RELEASES, job_id=job_id)


_CHECKS = f"""
SELECT results.variant_id, results.case_id, variants.name AS variant, cases.key AS case, near.commit_id, commits.sha,
     near.ordinal,
       near.status
FROM results
JOIN variants ON variants.id = results.variant_id
JOIN cases ON cases.id = results.case_id
CROSS JOIN LATERAL (
    SELECT results.commit_id, results.ordinal, results.status, results.id
    UNION ALL
    (SELECT other.commit_id, other.ordinal, other.status, other.id FROM results AS other JOIN runs
         ON runs.id = other.run_id
     JOIN jobs ON jobs.id = runs.job_id
     WHERE other.variant_id = results.variant_id AND other.case_id = results.case_id
          AND other.device_id = results.device_id
       AND other.kind = 'check' AND other.ordinal < results.ordinal AND NOT jobs.spec ? 'sanitize'
       AND other.status IN {("ok", *BAD)} ORDER BY other.ordinal DESC, other.id DESC LIMIT 5)
    UNION ALL
    (SELECT other.commit_id, other.ordinal, other.status, other.id FROM results AS other JOIN runs
         ON runs.id = other.run_id
     JOIN jobs ON jobs.id = runs.job_id
     WHERE other.variant_id = results.variant_id AND other.case_id = results.case_id
          AND other.device_id = results.device_id
       AND other.kind = 'check' AND other.ordinal > results.ordinal AND NOT jobs.spec ? 'sanitize'
       AND other.status IN {("ok", *BAD)} ORDER BY other.ordinal, other.id DESC LIMIT 5)
) AS near
JOIN commits ON commits.id = near.commit_id
WHERE results.run_id = {NEWEST_RUN} AND results.kind = 'check' AND results.status IN {("ok", *BAD)}
ORDER BY results.variant_id, results.case_id, near.ordinal, near.id DESC
"""


def list_checks_around(session: Session, job_id: int) -> list[CheckRow]:
    """The results of a check job's newest run, beside the known results of other commits near its commit, by variant
    and case, oldest commit first.

    Of a commit that was checked several times the newest row comes first.
    """
    return fetch(session, CheckRow, _CHECKS, job_id=job_id)


_NEWEST_RUNS = """(SELECT max(runs.id) FROM runs JOIN trials ON trials.job_id = runs.job_id
    WHERE trials.regression_id = :regression_id AND runs.state = 'done' GROUP BY runs.job_id)"""
"""The ids of the newest finished runs of all trials of a regression, as SQL."""


def list_trial_checks(session: Session, regression_id: int) -> dict[int, list[CheckRow]]:
    """The checks of the newest run of every trial of a regression, by job."""
    sql = f"""
    SELECT runs.job_id, variant_id, case_id, variants.name AS variant, cases.key AS case, commit_id, sha,
         results.ordinal, results.status
    FROM results JOIN runs ON runs.id = results.run_id JOIN variants ON variants.id = variant_id
    JOIN cases ON cases.id = case_id JOIN commits ON commits.id = commit_id
    WHERE run_id IN {_NEWEST_RUNS} ORDER BY results.id
    """
    checks: dict[int, list[CheckRow]] = {}
    for job_id, *values in session.execute(text(sql), {"regression_id": regression_id}):
        checks.setdefault(job_id, []).append(CheckRow(*values))
    return checks


def list_job_rounds(session: Session, job_id: int) -> list[RoundsRow]:
    """The paired rounds of a job's newest run, by series."""
    sql = f"SELECT {_ROUNDS} WHERE run_id = {NEWEST_RUN} ORDER BY series_id"
    return [_rounds_row(*values) for values in session.execute(text(sql), {"job_id": job_id})]


def list_trial_rounds(session: Session, regression_id: int) -> dict[int, dict[int, RoundsRow]]:
    """The paired rounds of the newest run of every trial of a regression, by job and series."""
    sql = f"""
    SELECT runs.job_id, {_ROUNDS} JOIN runs ON runs.id = run_id WHERE run_id IN {_NEWEST_RUNS} ORDER BY comparisons.id
    """
    rounds: dict[int, dict[int, RoundsRow]] = {}
    for job_id, *values in session.execute(text(sql), {"regression_id": regression_id}):
        row = _rounds_row(*values)
        rounds.setdefault(job_id, {})[row.series_id] = row
    return rounds


_ROUNDS = """
series_id, comparisons.status, comparisons.message, comparisons.reason, base_ns, head_ns, series.metric,
series.variant_id, series.case_id, variants.name AS variant, cases.key AS case, series.protocol, comparisons.cells
FROM comparisons JOIN series ON series.id = series_id JOIN variants ON variants.id = series.variant_id
JOIN cases ON cases.id = series.case_id
"""


def _rounds_row(series_id: int, status: str, message: str, reason: str | None, *values: Any) -> RoundsRow:
    known = None if reason is None else Reason(reason)
    cells = None if values[-1] is None else CellRounds(**values[-1])
    return RoundsRow(series_id, status, message, known, *(*values[:-1], cells))
