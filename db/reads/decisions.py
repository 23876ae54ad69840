"""Reads what an A/B job compared, and which regression it decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from warpwatch.db.environment_changes import EnvironmentStep, list_job_steps
from warpwatch.db.reads.query import fetch, fetch_one


@dataclass(frozen=True, slots=True)
class ComparedSeries:
    """Paired rounds of one series in a job; base_ns[i] was taken beside head_ns[i]."""

    series_id: int
    case: str
    variant: str
    metric: str
    status: str
    message: str
    reason: str | None
    base_ns: list[float]
    head_ns: list[float]
    protocol: str = ""


@dataclass(frozen=True, slots=True)
class DecidedRegression:
    """The regression that a job was a trial of, and the trial's answer."""

    regression_id: int
    purpose: str
    answer: str
    ratio: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class JobDecision:
    """regression: None where a person or CI asked for the job. steps: what it decided where the environment changed."""

    regression: DecidedRegression | None
    compared: list[ComparedSeries] = field(default_factory=list)
    steps: list[EnvironmentStep] = field(default_factory=list)


_COMPARED = """
SELECT comparisons.series_id, cases.key AS case, variants.name AS variant, series.metric, comparisons.status,
       comparisons.message, comparisons.reason, base_ns, head_ns, series.protocol
FROM comparisons JOIN series ON series.id = comparisons.series_id
JOIN cases ON cases.id = series.case_id JOIN variants ON variants.id = series.variant_id
WHERE run_id = (SELECT max(id) FROM runs WHERE job_id = :job_id AND state = 'done')
ORDER BY series.case_id, series.variant_id, comparisons.id
"""


def read_decision(session: Session, job_id: int) -> JobDecision:
    """The series that a job compared in its newest run, and what the job was a trial of."""
    sql = "SELECT regression_id, purpose, answer, ratio, low, high FROM trials WHERE job_id = :job_id"
    regression = fetch_one(session, DecidedRegression, sql, job_id=job_id)
    compared = fetch(session, ComparedSeries, _COMPARED, job_id=job_id)
    return JobDecision(regression, compared, list_job_steps(session, job_id))
