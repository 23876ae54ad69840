"""Writes verdicts: suspicions from history, and decisions from interleaved comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert_into
from sqlalchemy.orm import Session

from db.errors import NotFoundError
from db.live import announce
from db.models import Job, JobState, Regression, RegressionSeries, Verdict
from db.triage import set_triage as set_triage


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that ended and from which no verdict was drawn yet. base_commit_id is set for compare jobs."""

    id: int
    kind: str
    state: str
    commit_id: int
    base_commit_id: int | None
    operator_id: int
    device_id: int
    submission_id: int
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class SeriesDecision:
    """What the comparison said of one series; ratio is head over base, low and high its 95 % interval."""

    series_id: int
    verdict: Verdict
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def open_suspicion(
    s: Session,
    *,
    operator_id: int,
    device_id: int,
    base_commit_id: int,
    head_commit_id: int,
    direction: str,
    ratio: float,
    series: Iterable[tuple[int, float]],
) -> int | None:
    """The id of a new suspected change; None when this one is open or decided already.

    direction: slower | faster. ratio: head over base of the worst series. series: (series id, its ratio).
    """
    row = {"operator_id": operator_id, "device_id": device_id, "base_commit_id": base_commit_id, "head_commit_id": head_commit_id}
    statement = upsert_into(Regression).values(**row, direction=direction, ratio=ratio).on_conflict_do_nothing()
    regression_id: int | None = s.scalar(statement.returning(Regression.id))
    if regression_id is None:
        return None
    members = [{"regression_id": regression_id, "series_id": number, "suspected_ratio": value} for number, value in series]
    if members:
        s.execute(insert(RegressionSeries), members)
    announce(s, "regression")
    return regression_id


def attach_compare_job(s: Session, regression_id: int, job_id: int) -> None:
    """Remembers which job decides the suspicion."""
    _get(s, regression_id).compare_job_id = job_id


def decide(
    s: Session,
    regression_id: int,
    verdict: Verdict,
    *,
    ratio: float | None = None,
    low: float | None = None,
    high: float | None = None,
    series: Sequence[SeriesDecision] = (),
    base_trace_id: int | None = None,
    head_trace_id: int | None = None,
) -> None:
    """Writes what the comparison said. Without a ratio the suspected one stays; deciding anew replaces the last decision."""
    regression = _get(s, regression_id)
    regression.verdict = Verdict(verdict)
    regression.ratio = regression.ratio if ratio is None else ratio
    regression.low, regression.high = low, high
    regression.base_trace_id, regression.head_trace_id = base_trace_id, head_trace_id
    regression.decided_at = func.now()
    for one in series:
        member = (RegressionSeries.regression_id == regression_id, RegressionSeries.series_id == one.series_id)
        values = {"verdict": Verdict(one.verdict), "ratio": one.ratio, "low": one.low, "high": one.high}
        s.execute(update(RegressionSeries).where(*member).values(values))
    announce(s, "regression")


def unjudged_jobs(s: Session, limit: int = 100) -> list[EndedJob]:
    """Ended jobs that no verdict was drawn from, oldest first, locked so that only one process judges each.

    Failed and cancelled ones are among them: a suspicion whose compare job could not run must not wait for ever.
    """
    ended = Job.state.in_([JobState.DONE, JobState.FAILED, JobState.CANCELLED])
    statement = select(Job).where(ended, Job.judged_at.is_(None)).order_by(Job.id).limit(limit).with_for_update(skip_locked=True)
    return [
        EndedJob(
            job.id,
            job.kind,
            job.state,
            job.commit_id,
            job.base_commit_id,
            job.operator_id,
            job.device_id,
            job.submission_id,
            job.finished_at,
        )
        for job in s.scalars(statement)
    ]


def mark_judged(s: Session, job_id: int) -> None:
    """Says that verdicts were drawn from the job."""
    s.execute(update(Job).where(Job.id == job_id).values(judged_at=func.now()))


def _get(s: Session, regression_id: int) -> Regression:
    regression = s.scalars(select(Regression).where(Regression.id == regression_id).with_for_update()).one_or_none()
    if regression is None:
        raise NotFoundError(f"there is no regression {regression_id}")
    return regression
