"""Reads what verdicts are drawn from: readings along history, checks, what is suspected already, trials and paired rounds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from db.reads.query import PRIMARY_METRIC, Session, fetch, fetch_one, fetch_scalar

BEFORE, AFTER = 128, 32
"""Readings of a series on either side of a new point that are looked at."""
ELSEWHERE = 8
"""Earlier ones in other environments, of which the nearest on the same line of history counts."""
BAD = ("wrong", "crashed", "timed_out", "out_of_memory", "build_failed")
"""Statuses of a check that say that something is broken; unsupported and skipped say nothing."""


@dataclass(frozen=True, slots=True)
class JobOrigin:
    """Where a job came from."""

    repository_id: int
    repository_url: str
    origin: str
    operator: str
    device_kind: str


@dataclass(frozen=True, slots=True)
class ReadingRow:
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


@dataclass(frozen=True, slots=True)
class CheckRow:
    """What a check said of one variant on one case at one commit."""

    variant_id: int
    case_id: int
    variant: str
    case: str
    commit_id: int
    sha: str
    ordinal: int
    status: str


@dataclass(frozen=True, slots=True)
class KnownChange:
    """A change of an operator on a device that is suspected or decided, with the ranges its confirmation was asked for."""

    id: int
    direction: str
    verdict: str
    is_settled: bool
    base_commit_id: int
    head_commit_id: int
    base_ordinal: int
    head_ordinal: int
    series: list[int]
    dismissed: list[int]
    """Those of its series that do not show it."""
    asked: list[list[int]]
    """[base ordinal, head ordinal] of every trial that confirmed it or was to."""


@dataclass(frozen=True, slots=True)
class RegressionState:
    """All that decides what is to be done about a regression."""

    id: int
    repository_id: int
    repository_url: str
    operator_id: int
    operator: str
    device_id: int
    device_kind: str
    direction: str
    cause: str
    verdict: str
    base_commit_id: int
    head_commit_id: int
    base_sha: str
    head_sha: str
    ratio: float | None
    settled_at: datetime | None


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A series of a regression. ratio, low, high: measured; None before."""

    series_id: int
    variant_id: int
    case_id: int
    variant: str
    case: str
    suspected_ratio: float | None
    base_status: str | None
    head_status: str | None
    verdict: str
    ratio: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class TrialState:
    """A question about a regression and its answer so far."""

    id: int
    regression_id: int
    job_id: int
    kind: str
    job_state: str
    job_message: str
    purpose: str
    base_commit_id: int
    head_commit_id: int
    base_sha: str
    head_sha: str
    answer: str
    ratio: float | None
    low: float | None
    high: float | None
    message: str
    spec: dict[str, Any]
    answered_at: datetime | None


@dataclass(frozen=True, slots=True)
class RoundsRow:
    """What a compare job measured of one series; base_ns[i] and head_ns[i] were taken beside each other."""

    series_id: int
    status: str
    message: str
    base_ns: list[float]
    head_ns: list[float]


@dataclass(frozen=True, slots=True)
class PairRow:
    """The rounds of one variant on one case in a comparison."""

    job_id: int
    variant: str
    case: str
    device_kind: str
    base_ns: list[float]
    head_ns: list[float]


def read_origin(session: Session, job_id: int) -> JobOrigin:
    sql = """
    SELECT repositories.id AS repository_id, url AS repository_url, origin, operators.name AS operator, devices.kind AS device_kind
    FROM jobs JOIN submissions ON submissions.id = jobs.submission_id JOIN repositories ON repositories.id = submissions.repository_id
    JOIN operators ON operators.id = jobs.operator_id JOIN devices ON devices.id = jobs.device_id WHERE jobs.id = :id
    """
    found = fetch_one(session, JobOrigin, sql, id=job_id)
    assert found is not None
    return found


_NEWEST_RUN = "(SELECT max(id) FROM runs WHERE job_id = :job_id AND state = 'done')"


def _side(environment: str, ordinal: str, order: str, limit: int) -> str:
    """SQL for the right points of a series whose environment and ordinal compare so with those of a new point, the nearest first."""
    return f"""
    (SELECT points.* FROM points JOIN results ON results.id = points.result_id
     WHERE points.series_id = new.series_id AND points.environment_id {environment} new.environment_id
       AND points.ordinal {ordinal} new.ordinal AND results.status = 'ok'
     ORDER BY points.ordinal {order}, points.id {order} LIMIT {limit})
    """


_READINGS = f"""
SELECT new.series_id, variants.name AS variant, cases.key AS case, near.environment_id, near.commit_id, commits.sha, near.ordinal,
       near.median_ns, near.low_ns, near.high_ns
FROM results
JOIN points AS new ON new.result_id = results.id
JOIN series ON series.id = new.series_id
JOIN devices AS device ON device.id = results.device_id
JOIN variants ON variants.id = results.variant_id
JOIN cases ON cases.id = results.case_id
CROSS JOIN LATERAL ({_side("=", "<=", "DESC", BEFORE)} UNION ALL {_side("=", ">", "ASC", AFTER)}
                    UNION ALL {_side("<>", "<", "DESC", ELSEWHERE)}) AS near
JOIN commits ON commits.id = near.commit_id
WHERE results.run_id = {_NEWEST_RUN} AND results.status = 'ok' AND series.metric = {PRIMARY_METRIC}
ORDER BY new.series_id, near.ordinal, near.id
"""


def list_readings(session: Session, job_id: int) -> list[ReadingRow]:
    """The readings around every right point that a bench job's newest run added in the primary metric, by series, oldest commit first.

    Those of its own environment, and the nearest earlier ones of others.
    """
    return fetch(session, ReadingRow, _READINGS, job_id=job_id)


_CHECKS = f"""
SELECT results.variant_id, results.case_id, variants.name AS variant, cases.key AS case, near.commit_id, commits.sha, near.ordinal,
       near.status
FROM results
JOIN variants ON variants.id = results.variant_id
JOIN cases ON cases.id = results.case_id
CROSS JOIN LATERAL (
    SELECT results.commit_id, results.ordinal, results.status, results.id
    UNION ALL
    (SELECT other.commit_id, other.ordinal, other.status, other.id FROM results AS other JOIN runs ON runs.id = other.run_id
     JOIN jobs ON jobs.id = runs.job_id
     WHERE other.variant_id = results.variant_id AND other.case_id = results.case_id AND other.device_id = results.device_id
       AND other.kind = 'check' AND other.ordinal < results.ordinal AND NOT jobs.spec ? 'sanitize'
       AND other.status IN {("ok", *BAD)} ORDER BY other.ordinal DESC, other.id DESC LIMIT 5)
    UNION ALL
    (SELECT other.commit_id, other.ordinal, other.status, other.id FROM results AS other JOIN runs ON runs.id = other.run_id
     JOIN jobs ON jobs.id = runs.job_id
     WHERE other.variant_id = results.variant_id AND other.case_id = results.case_id AND other.device_id = results.device_id
       AND other.kind = 'check' AND other.ordinal > results.ordinal AND NOT jobs.spec ? 'sanitize'
       AND other.status IN {("ok", *BAD)} ORDER BY other.ordinal, other.id DESC LIMIT 5)
) AS near
JOIN commits ON commits.id = near.commit_id
WHERE results.run_id = {_NEWEST_RUN} AND results.kind = 'check' AND results.status IN {("ok", *BAD)}
ORDER BY results.variant_id, results.case_id, near.ordinal, near.id DESC
"""


def list_checks_around(session: Session, job_id: int) -> list[CheckRow]:
    """What a check job's newest run said, beside what other commits near it are known to be, by variant and case, oldest commit first.

    Of a commit that was checked several times the newest row comes first.
    """
    return fetch(session, CheckRow, _CHECKS, job_id=job_id)


def list_checks(session: Session, job_id: int) -> list[CheckRow]:
    """What a check job's newest run said."""
    sql = f"""
    SELECT variant_id, case_id, variants.name AS variant, cases.key AS case, commit_id, sha, results.ordinal, status
    FROM results JOIN variants ON variants.id = variant_id JOIN cases ON cases.id = case_id JOIN commits ON commits.id = commit_id
    WHERE run_id = {_NEWEST_RUN} ORDER BY results.id
    """
    return fetch(session, CheckRow, sql, job_id=job_id)


def list_pairs(session: Session, submission_id: int) -> list[PairRow]:
    """What the comparisons of a submission measured, those that came to an end."""
    sql = """
    SELECT jobs.id AS job_id, variants.name AS variant, cases.key AS case, devices.kind AS device_kind, base_ns, head_ns
    FROM jobs
    CROSS JOIN LATERAL (SELECT max(id) AS id FROM runs WHERE job_id = jobs.id AND state = 'done') AS run
    JOIN comparisons ON comparisons.run_id = run.id AND comparisons.status = 'ok'
    JOIN series ON series.id = comparisons.series_id
    JOIN variants ON variants.id = series.variant_id
    JOIN cases ON cases.id = series.case_id
    JOIN devices ON devices.id = series.device_id
    WHERE jobs.submission_id = :submission_id AND jobs.kind = 'compare' ORDER BY comparisons.id
    """
    return fetch(session, PairRow, sql, submission_id=submission_id)


def list_known(session: Session, operator_id: int, device_id: int, oldest: int) -> list[KnownChange]:
    """The changes of an operator on a device that end after the commit with the ordinal `oldest`."""
    sql = """
    SELECT regressions.id, direction, verdict, settled_at IS NOT NULL AS is_settled, regressions.base_commit_id,
           regressions.head_commit_id, base.ordinal AS base_ordinal, head.ordinal AS head_ordinal,
           (SELECT coalesce(jsonb_agg(series_id), '[]') FROM regression_series WHERE regression_id = regressions.id) AS series,
           (SELECT coalesce(jsonb_agg(series_id), '[]') FROM regression_series AS member
            WHERE regression_id = regressions.id AND member.verdict = 'dismissed') AS dismissed,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(one.ordinal, other.ordinal)), '[]') FROM trials
            JOIN commits AS one ON one.id = trials.base_commit_id JOIN commits AS other ON other.id = trials.head_commit_id
            WHERE regression_id = regressions.id AND purpose IN ('confirm', 'retry')) AS asked
    FROM regressions JOIN commits AS base ON base.id = regressions.base_commit_id
    JOIN commits AS head ON head.id = regressions.head_commit_id
    WHERE operator_id = :operator_id AND device_id = :device_id AND head.ordinal >= :oldest
    """
    return fetch(session, KnownChange, sql, operator_id=operator_id, device_id=device_id, oldest=oldest)


def read_state(session: Session, regression_id: int) -> RegressionState:
    sql = """
    SELECT regressions.id, operators.repository_id, url AS repository_url, operator_id, operators.name AS operator, device_id,
           devices.kind AS device_kind, direction, cause, verdict, base_commit_id, head_commit_id, base.sha AS base_sha,
           head.sha AS head_sha, ratio, settled_at
    FROM regressions JOIN operators ON operators.id = operator_id JOIN repositories ON repositories.id = operators.repository_id
    JOIN devices ON devices.id = device_id JOIN commits AS base ON base.id = base_commit_id
    JOIN commits AS head ON head.id = head_commit_id WHERE regressions.id = :id
    """
    found = fetch_one(session, RegressionState, sql, id=regression_id)
    assert found is not None
    return found


def list_members(session: Session, regression_id: int) -> list[MemberRow]:
    """The series of a regression, by id."""
    sql = """
    SELECT series_id, series.variant_id, series.case_id, variants.name AS variant, cases.key AS case, suspected_ratio, base_status,
           head_status, verdict, ratio, low, high
    FROM regression_series JOIN series ON series.id = series_id JOIN variants ON variants.id = series.variant_id
    JOIN cases ON cases.id = series.case_id WHERE regression_id = :id ORDER BY series_id
    """
    return fetch(session, MemberRow, sql, id=regression_id)


_TRIALS = """
SELECT trials.id, regression_id, job_id, jobs.kind, jobs.state AS job_state, jobs.message AS job_message, purpose,
       trials.base_commit_id, trials.head_commit_id, base.sha AS base_sha, head.sha AS head_sha, answer, ratio, low, high,
       trials.message, jobs.spec, answered_at
FROM trials JOIN jobs ON jobs.id = job_id JOIN commits AS base ON base.id = trials.base_commit_id
JOIN commits AS head ON head.id = trials.head_commit_id
"""


def list_trials(session: Session, regression_id: int) -> list[TrialState]:
    """The trials of a regression in the order they were asked for."""
    return fetch(session, TrialState, _TRIALS + "WHERE regression_id = :id ORDER BY trials.id", id=regression_id)


def find_trial(session: Session, job_id: int) -> TrialState | None:
    """The trial that this job is to answer."""
    return fetch_one(session, TrialState, _TRIALS + "WHERE job_id = :job_id", job_id=job_id)


def was_tried(session: Session, operator_id: int, device_id: int, base_commit_id: int, head_commit_id: int) -> bool:
    """Whether a trial of a suspicion held these two commits against each other."""
    sql = """
    SELECT EXISTS (SELECT FROM regressions JOIN trials ON trials.regression_id = regressions.id
    WHERE operator_id = :operator_id AND device_id = :device_id AND purpose = 'confirm'
      AND trials.base_commit_id = :base AND trials.head_commit_id = :head)
    """
    ids = {"operator_id": operator_id, "device_id": device_id, "base": base_commit_id, "head": head_commit_id}
    return bool(fetch_scalar(session, sql, **ids))


def list_rounds(session: Session, job_id: int) -> dict[int, RoundsRow]:
    """The paired rounds of a compare job's newest run by series."""
    sql = f"SELECT series_id, status, message, base_ns, head_ns FROM comparisons WHERE run_id = {_NEWEST_RUN}"
    return {row.series_id: row for row in fetch(session, RoundsRow, sql, job_id=job_id)}


def find_trace(session: Session, compare_job_id: int, commit_id: int, series_id: int) -> int | None:
    """The trace that a compare job took of one series at one of its two commits."""
    sql = f"""
    SELECT max(traces.id) FROM traces
    JOIN results ON results.id = traces.result_id
    JOIN series ON series.variant_id = results.variant_id AND series.case_id = results.case_id
    WHERE results.run_id = {_NEWEST_RUN.replace(":job_id", ":compare_job_id")}
      AND results.commit_id = :commit_id AND series.id = :series_id
    """
    found: int | None = fetch_scalar(session, sql, compare_job_id=compare_job_id, commit_id=commit_id, series_id=series_id)
    return found


def read_code_hash(session: Session, operator_id: int, commit_id: int, environment_id: int) -> str:
    """The fingerprint of an operator's machine code at a commit; empty where it is unknown."""
    sql = """
    SELECT code_hash FROM builds WHERE commit_id = :commit_id AND operator_id = :operator_id AND environment_id = :environment_id
    """
    found = fetch_scalar(session, sql, operator_id=operator_id, commit_id=commit_id, environment_id=environment_id)
    return str(found or "")


def list_native(session: Session, commit_id: int, operator: str) -> set[str]:
    """Names of an operator's native variants by the catalogue of a commit."""
    sql = """
    SELECT variant ->> 'name' FROM commits, jsonb_array_elements(catalogue -> 'operators') AS entry,
           jsonb_array_elements(entry -> 'variants') AS variant
    WHERE commits.id = :commit_id AND entry ->> 'name' = :operator AND (variant ->> 'native')::boolean
    """
    return set(session.execute(text(sql), {"commit_id": commit_id, "operator": operator}).scalars())


def was_right_there(session: Session, regression_id: int, base_commit_id: int, job_id: int) -> bool:
    """Whether a check of what is broken said ok at the base, in the environment of a check job's newest run."""
    sql = f"""
    SELECT EXISTS (SELECT FROM regression_series JOIN series ON series.id = series_id
    JOIN results ON results.commit_id = :base AND results.operator_id = series.operator_id AND results.kind = 'check'
         AND results.device_id = series.device_id AND results.variant_id = series.variant_id AND results.case_id = series.case_id
    WHERE regression_id = :id AND results.status = 'ok'
      AND results.environment_id = (SELECT environment_id FROM runs WHERE id = {_NEWEST_RUN}))
    """
    return bool(fetch_scalar(session, sql, id=regression_id, base=base_commit_id, job_id=job_id))


def list_job_ids(session: Session, submission_id: int) -> list[int]:
    """Ids of the jobs of a submission, oldest first."""
    ids: list[int] = fetch_scalar(session, "SELECT array_agg(id ORDER BY id) FROM jobs WHERE submission_id = :id", id=submission_id)
    return ids or []


def list_wider(session: Session, regression_id: int) -> list[int]:
    """Confirmed and settled changes nobody has triaged whose range of commits holds a narrower confirmed one, that of `regression_id`."""
    sql = """
    SELECT array_agg(wide.id) FROM regressions AS narrow
    JOIN regressions AS wide ON wide.operator_id = narrow.operator_id AND wide.device_id = narrow.device_id
         AND wide.direction = narrow.direction AND wide.id <> narrow.id
    JOIN commits AS narrow_base ON narrow_base.id = narrow.base_commit_id
    JOIN commits AS narrow_head ON narrow_head.id = narrow.head_commit_id
    JOIN commits AS wide_base ON wide_base.id = wide.base_commit_id
    JOIN commits AS wide_head ON wide_head.id = wide.head_commit_id
    WHERE narrow.id = :id AND wide.verdict = 'confirmed' AND wide.state = 'new'
      AND wide.settled_at IS NOT NULL
      AND wide_base.ordinal <= narrow_base.ordinal AND narrow_head.ordinal <= wide_head.ordinal
      AND EXISTS (SELECT FROM regression_series AS one JOIN regression_series AS other USING (series_id)
                  WHERE one.regression_id = narrow.id AND other.regression_id = wide.id)
    """
    return fetch_scalar(session, sql, id=regression_id) or []
