"""Reads what verdicts are drawn from: new points beside their neighbours in history, and paired rounds."""

from __future__ import annotations

from dataclasses import dataclass

from db.reads.query import PRIMARY_METRIC, Session, fetch, fetch_one, fetch_scalar

CANDIDATES = 5
"""Neighbours to look at on each side of a new point; the nearest may be on another branch."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A new point and an older or newer one of its series, taken in the same environment. Durations in nanoseconds."""

    series_id: int
    device_kind: str
    variant: str
    case: str
    commit_id: int
    sha: str
    ordinal: int
    median_ns: float
    low_ns: float
    high_ns: float
    other_commit_id: int
    other_sha: str
    other_ordinal: int
    other_median_ns: float
    other_low_ns: float
    other_high_ns: float


@dataclass(frozen=True, slots=True)
class JobOrigin:
    """Where a job came from."""

    repository_id: int
    repository_url: str
    origin: str


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A suspected change that a compare job is to decide."""

    id: int
    operator_id: int
    device_id: int
    device_kind: str
    direction: str
    base_commit_id: int
    head_commit_id: int


@dataclass(frozen=True, slots=True)
class SuspectedSeries:
    """One series of a suspicion with its paired rounds; status is None when the comparison says nothing of it."""

    series_id: int
    suspected_ratio: float
    status: str | None
    base_ns: list[float]
    head_ns: list[float]


def _side(comparison: str, order: str) -> str:
    """SQL for the nearest points of a series before or behind a point, the newest of each commit."""
    return f"""
    (SELECT DISTINCT ON (points.ordinal, points.commit_id) points.*, commits.sha FROM points
     JOIN commits ON commits.id = points.commit_id JOIN results ON results.id = points.result_id
     WHERE points.series_id = new.series_id AND points.environment_id = new.environment_id
       AND points.ordinal {comparison} new.ordinal AND results.status = 'ok'
     ORDER BY points.ordinal {order}, points.commit_id, points.id DESC LIMIT {CANDIDATES})
    """


_NEIGHBOURS = f"""
SELECT new.series_id, device.kind AS device_kind, variants.name AS variant, cases.key AS case, new.commit_id, commits.sha, new.ordinal,
       new.median_ns, new.low_ns, new.high_ns,
       other.commit_id AS other_commit_id, other.sha AS other_sha, other.ordinal AS other_ordinal,
       other.median_ns AS other_median_ns, other.low_ns AS other_low_ns, other.high_ns AS other_high_ns
FROM results
JOIN points AS new ON new.result_id = results.id
JOIN series ON series.id = new.series_id
JOIN devices AS device ON device.id = results.device_id
JOIN commits ON commits.id = new.commit_id
JOIN variants ON variants.id = results.variant_id
JOIN cases ON cases.id = results.case_id
CROSS JOIN LATERAL ({_side("<", "DESC")} UNION ALL {_side(">", "ASC")}) AS other
WHERE results.run_id = (SELECT max(id) FROM runs WHERE job_id = :job_id AND state = 'done')
  AND results.status = 'ok' AND series.metric = {PRIMARY_METRIC}
ORDER BY new.series_id, abs(new.ordinal - other.ordinal)
"""


def list_neighbours(session: Session, job_id: int) -> list[Neighbours]:
    """Every right point that a bench job's newest run added in the primary metric, beside its neighbours, nearest first."""
    return fetch(session, Neighbours, _NEIGHBOURS, job_id=job_id)


def read_origin(session: Session, submission_id: int) -> JobOrigin | None:
    sql = """
    SELECT repositories.id AS repository_id, url AS repository_url, origin FROM submissions
    JOIN repositories ON repositories.id = submissions.repository_id WHERE submissions.id = :id
    """
    return fetch_one(session, JobOrigin, sql, id=submission_id)


def find_suspicion(session: Session, compare_job_id: int) -> Suspicion | None:
    """The change that this compare job was made to decide."""
    sql = """
    SELECT regressions.id, operator_id, device_id, devices.kind AS device_kind, direction, base_commit_id, head_commit_id
    FROM regressions JOIN devices ON devices.id = device_id
    WHERE compare_job_id = :job_id ORDER BY regressions.id LIMIT 1
    """
    return fetch_one(session, Suspicion, sql, job_id=compare_job_id)


def list_suspected_series(session: Session, regression_id: int, compare_job_id: int) -> list[SuspectedSeries]:
    """The series of a suspicion with the paired rounds of its compare job's newest run."""
    sql = """
    SELECT regression_series.series_id, suspected_ratio, comparisons.status,
           coalesce(base_ns, '[]') AS base_ns, coalesce(head_ns, '[]') AS head_ns
    FROM regression_series
    LEFT JOIN comparisons ON comparisons.series_id = regression_series.series_id
         AND comparisons.run_id = (SELECT max(id) FROM runs WHERE job_id = :job_id AND state = 'done')
    WHERE regression_id = :regression_id ORDER BY regression_series.series_id
    """
    return fetch(session, SuspectedSeries, sql, regression_id=regression_id, job_id=compare_job_id)


def find_trace(session: Session, compare_job_id: int, commit_id: int, series_id: int) -> int | None:
    """The trace that a compare job took of one series at one of its two commits."""
    sql = """
    SELECT max(traces.id) FROM traces
    JOIN results ON results.id = traces.result_id
    JOIN series ON series.variant_id = results.variant_id AND series.case_id = results.case_id
    WHERE results.run_id = (SELECT max(id) FROM runs WHERE job_id = :job_id AND state = 'done')
      AND results.commit_id = :commit_id AND series.id = :series_id
    """
    found: int | None = fetch_scalar(session, sql, job_id=compare_job_id, commit_id=commit_id, series_id=series_id)
    return found


def list_job_ids(session: Session, submission_id: int) -> list[int]:
    """Ids of the jobs of a submission, oldest first."""
    ids: list[int] = fetch_scalar(session, "SELECT array_agg(id ORDER BY id) FROM jobs WHERE submission_id = :id", id=submission_id)
    return ids or []


def list_wider(session: Session, regression_id: int) -> list[int]:
    """Confirmed changes nobody has triaged whose range of commits holds a narrower confirmed one, that of `regression_id`."""
    sql = """
    SELECT array_agg(wide.id) FROM regressions AS narrow
    JOIN regressions AS wide ON wide.operator_id = narrow.operator_id AND wide.device_id = narrow.device_id
         AND wide.direction = narrow.direction AND wide.id <> narrow.id
    JOIN commits AS narrow_base ON narrow_base.id = narrow.base_commit_id
    JOIN commits AS narrow_head ON narrow_head.id = narrow.head_commit_id
    JOIN commits AS wide_base ON wide_base.id = wide.base_commit_id
    JOIN commits AS wide_head ON wide_head.id = wide.head_commit_id
    WHERE narrow.id = :id AND wide.verdict = 'confirmed' AND wide.state = 'new'
      AND wide_base.ordinal <= narrow_base.ordinal AND narrow_head.ordinal <= wide_head.ordinal
      AND EXISTS (SELECT FROM regression_series AS one JOIN regression_series AS other USING (series_id)
                  WHERE one.regression_id = narrow.id AND other.regression_id = wide.id)
    """
    return fetch_scalar(session, sql, id=regression_id) or []
