"""Ended jobs that no verdict was drawn from yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import JobState
from warpwatch.db.models import JobRecord, SubmissionRecord

_ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


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
    spec: JobSpec
    message: str
    trace_parent: str | None


def unjudged_jobs(s: Session) -> list[EndedJob]:
    """Of each repository the oldest ended job that no verdict was drawn from: a long import of one keeps no other
    waiting. Without those that another process is judging right now.

    Failed and cancelled ones are among them: a suspicion whose compare job could not run must not wait for ever.
    """
    unjudged = JobRecord.state.in_(_ENDED), JobRecord.judged_at.is_(None)
    oldest = (
        select(func.min(JobRecord.id))
        .join(SubmissionRecord, SubmissionRecord.id == JobRecord.submission_id)
        .where(*unjudged)
        .group_by(SubmissionRecord.repository_id)
    )
    statement = (
        select(JobRecord)
        .where(JobRecord.id.in_(oldest), *unjudged)
        .order_by(JobRecord.id)
        .with_for_update(skip_locked=True)
    )
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
            job.spec,
            job.message,
            job.trace_parent,
        )
        for job in s.scalars(statement)
    ]


def claim_unjudged(s: Session, job: EndedJob) -> bool:
    """Whether no verdict was drawn from an ended job yet and it was not run again; it is locked until the transaction
    ends."""
    statement = select(JobRecord.finished_at).where(
        JobRecord.id == job.id, JobRecord.state == job.state, JobRecord.judged_at.is_(None)
    )
    row = s.execute(statement.with_for_update()).one_or_none()
    return row is not None and row.finished_at == job.finished_at


def mark_judged(s: Session, job_id: int) -> None:
    """Says that verdicts were drawn from the job."""
    s.execute(update(JobRecord).where(JobRecord.id == job_id).values(judged_at=func.now()))


def reopen_early(s: Session, job_id: int) -> None:
    """Takes the verdicts back from which jobs of a submission were judged before the last one of their operator, device
    and kind ended, so that they are judged once more with all readings.

    Ranges are measured by halves: a job that came early saw gaps, and the newest commit had no history at all. Nothing
    is taken back of results that were imported: the clocks of other machines do not tell when they were judged.
    """
    s.execute(text(_REOPEN), {"job_id": job_id})


_REOPEN = """
WITH slot AS (
    SELECT other.id, other.state, other.judged_at, other.finished_at FROM jobs AS own
    JOIN jobs AS other ON other.submission_id = own.submission_id AND other.operator_id = own.operator_id
         AND other.device_id = own.device_id AND other.kind = own.kind
    WHERE own.id = :job_id AND own.kind IN ('bench', 'check') AND other.reason IS DISTINCT FROM 'unchanged'
)
UPDATE jobs SET judged_at = NULL FROM slot
WHERE jobs.id = slot.id AND slot.state = 'done'
  AND slot.judged_at < (SELECT max(finished_at) FROM slot)
  AND NOT EXISTS (SELECT FROM slot WHERE state IN ('queued', 'running'))
"""
