"""Takes in what people and CI ask for, and takes it back: submissions, cancelling, retrying."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from warpwatch.contract.claims import TRACE_PARENT
from warpwatch.contract.priorities import ORDINARY, SCHEDULED
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import JobState, Reason, RunState
from warpwatch.db.callbacks import reopen
from warpwatch.db.errors import NotFoundError, StateError
from warpwatch.db.forge import reopen_check_run
from warpwatch.db.judgements import is_of_judgement
from warpwatch.db.live import announce, announce_queued
from warpwatch.db.models import CommitRecord, JobRecord, OperatorRecord, RepositoryRecord, RunRecord, SubmissionRecord
from warpwatch.db.runs import ATTEMPTS
from warpwatch.db.urgent import forget_partial

_OPEN = (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class NewJob:
    """kind × commit × operator × device; see db.models.JobRecord."""

    kind: str
    commit_id: int
    operator_id: int
    device_id: int
    spec: JobSpec
    base_commit_id: int | None = None
    unchanged_since: str | None = None
    """Git's id of the commit whose results are this job's too: the job is done before it began."""


@dataclass(frozen=True, slots=True)
class NewSubmission:
    """A submission to create. A higher priority runs earlier; the same idempotency key twice is one submission."""

    repository_id: int
    request: dict[str, Any]
    jobs: list[NewJob] = field(default_factory=list)
    origin: str = "api"
    priority: int = 0
    idempotency_key: str | None = None
    schedule_id: int | None = None
    """The schedule that made the submission, where no person did."""
    base_commit_id: int | None = None
    """The commit that the measured commit is compared with; see db.models.SubmissionRecord."""
    definitions_sha: str | None = None
    """The version of definitions that the jobs were planned with; None for the repository's newest."""


def create_submission(session: Session, new: NewSubmission) -> int:
    """The id of the submission; its rows come to be together, or not at all.

    An idempotency key that was used before returns the submission it was used for and makes nothing.
    """
    row = {
        "repository_id": new.repository_id,
        "request": new.request,
        "origin": new.origin,
        "priority": new.priority,
        "schedule_id": new.schedule_id,
        "base_commit_id": new.base_commit_id,
    }
    statement = (
        upsert(SubmissionRecord)
        .values(**row, idempotency_key=new.idempotency_key)
        .on_conflict_do_nothing(index_elements=["idempotency_key"])
    )
    submission_id: int | None = session.scalar(statement.returning(SubmissionRecord.id))
    if submission_id is None:
        return session.scalars(
            select(SubmissionRecord.id).where(SubmissionRecord.idempotency_key == new.idempotency_key)
        ).one()
    if new.jobs:
        _add_jobs(session, submission_id, new.jobs, new.priority, new.definitions_sha)
    announce(session, "state", submission_id=submission_id)
    return submission_id


def may_repeat(session: Session, submission_id: int) -> bool:
    """Whether all comparisons of a submission came to an end and none is a repetition.

    The submission stays locked until the transaction ends, so another caller waits for this one.
    """
    session.execute(select(SubmissionRecord.id).where(SubmissionRecord.id == submission_id).with_for_update())
    compared = select(JobRecord.state, JobRecord.spec).where(
        JobRecord.submission_id == submission_id, JobRecord.kind == "compare"
    )
    return not any(
        state in (*_OPEN, JobState.CANCELLED) or spec.rounds is not None for state, spec in session.execute(compared)
    )


def repeat(session: Session, job_id: int, pairs: list[tuple[str, str]], rounds: int) -> None:
    """Adds a comparison like an ended one to its submission: of these pairs alone, in so many rounds, and behind the
    ordinary work that was asked for before it."""
    job = _lock_job(session, job_id)
    spec = replace(job.spec, pairs=pairs, rounds=rounds, stop=None)
    new = NewJob(job.kind, job.commit_id, job.operator_id, job.device_id, spec, job.base_commit_id)
    _add_jobs(session, job.submission_id, [new], min(job.priority, ORDINARY))
    announce(session, "state", submission_id=job.submission_id)


def repeat_bench(session: Session, job_id: int) -> None:
    """Asks for one more bench like an ended one, after all other work. A commit that has another bench of the operator
    on the device needs none."""
    job = _lock_job(session, job_id)
    place = JobRecord.commit_id == job.commit_id, JobRecord.operator_id == job.operator_id
    same = select(func.count()).where(*place, JobRecord.device_id == job.device_id, JobRecord.kind == job.kind)
    if (session.scalar(same) or 0) <= 1:
        bench_again(session, job_id)


def bench_again(session: Session, job_id: int) -> None:
    """Asks for one more bench like an ended one, after all other work."""
    job = session.get_one(JobRecord, job_id)
    repository_id, sha, operator = session.execute(
        select(CommitRecord.repository_id, CommitRecord.sha, OperatorRecord.name)
        .join(OperatorRecord, OperatorRecord.id == job.operator_id)
        .where(CommitRecord.id == job.commit_id)
    ).one()
    request = {"commits": sha, "kinds": [job.kind], "operators": [operator], "repeats": job_id}
    new = NewJob(job.kind, job.commit_id, job.operator_id, job.device_id, job.spec)
    create_submission(session, NewSubmission(repository_id, request, [new], "judge", SCHEDULED - 1))


def _add_jobs(
    session: Session, submission_id: int, new: list[NewJob], priority: int, definitions_sha: str | None = None
) -> None:
    newest = (
        select(RepositoryRecord.definitions_sha)
        .join(SubmissionRecord, SubmissionRecord.repository_id == RepositoryRecord.id)
        .where(SubmissionRecord.id == submission_id)
    )
    definitions_sha = definitions_sha or session.scalar(newest)
    measured = _commit_ids(
        session, submission_id, {job.unchanged_since for job in new if job.unchanged_since is not None}
    )
    jobs = [
        {
            "submission_id": submission_id,
            "kind": job.kind,
            "commit_id": job.commit_id,
            "base_commit_id": job.base_commit_id,
            "operator_id": job.operator_id,
            "device_id": job.device_id,
            "spec": job.spec,
            "priority": priority,
            "max_attempts": ATTEMPTS,
            "definitions_sha": definitions_sha,
            "trace_parent": TRACE_PARENT.get(),
            **_end_of_unchanged(job.unchanged_since, measured),
        }
        for job in new
    ]
    session.execute(insert(JobRecord), jobs)
    announce_queued(session, {job.device_id for job in new if job.unchanged_since is None})


def _commit_ids(session: Session, submission_id: int, shas: set[str]) -> dict[str, int]:
    """The row ids of commits of the submission's repository, by git's id."""
    if not shas:
        return {}
    statement = (
        select(CommitRecord.sha, CommitRecord.id)
        .join(SubmissionRecord, SubmissionRecord.repository_id == CommitRecord.repository_id)
        .where(SubmissionRecord.id == submission_id, CommitRecord.sha.in_(shas))
    )
    ids = {row.sha: row.id for row in session.execute(statement)}
    unknown = sorted(shas - set(ids))
    if unknown:
        raise NotFoundError(f"there is no commit {unknown[0]} in the repository of submission {submission_id}")
    return ids


def _end_of_unchanged(unchanged_since: str | None, commit_ids: dict[str, int]) -> dict[str, Any]:
    """The columns of a job that has nothing to do. A job that has work gets the same columns, because one statement
    inserts both."""
    if unchanged_since is None:
        columns = ("message", "reason", "unchanged_since_commit_id", "finished_at", "judged_at")
        return {"state": JobState.QUEUED} | dict.fromkeys(columns) | {"message": ""}
    now = datetime.now(UTC)
    return {
        "state": JobState.DONE,
        "message": f"not measured: its sources are those of {unchanged_since}",
        "reason": Reason.UNCHANGED,
        "unchanged_since_commit_id": commit_ids[unchanged_since],
        "finished_at": now,
        "judged_at": now,
    }


def cancel_submission(session: Session, submission_id: int) -> int:
    """Cancels every job of the submission that has not ended; returns how many."""
    _require_submission(session, submission_id)
    jobs = session.scalars(
        _locked_jobs().where(JobRecord.submission_id == submission_id, JobRecord.state.in_(_OPEN))
    ).all()
    for job in jobs:
        _cancel(session, job)
    return len(jobs)


def cancel_job(session: Session, job_id: int) -> bool:
    """Cancels the job; False when it had ended already.

    A running job is cancelled at once; its worker learns of it at its next heartbeat.
    """
    job = _lock_job(session, job_id)
    if job.state not in _OPEN:
        return False
    _cancel(session, job)
    return True


def retry_job(session: Session, job_id: int) -> None:
    """Puts an ended job back into the queue; StateError when it has not ended."""
    job = _lock_job(session, job_id)
    if job.state in _OPEN:
        raise StateError(f"job {job_id} is still {job.state}; cancel it first, or wait for its end")
    _expect_no_judgement(session, job.submission_id)
    _retry(session, job)


def retry_submission(session: Session, submission_id: int) -> int:
    """Puts every failed or cancelled job of the submission back into the queue; returns how many."""
    _require_submission(session, submission_id)
    _expect_no_judgement(session, submission_id)
    ended = (JobState.FAILED, JobState.CANCELLED)
    jobs = session.scalars(
        _locked_jobs().where(JobRecord.submission_id == submission_id, JobRecord.state.in_(ended))
    ).all()
    for job in jobs:
        _retry(session, job)
    return len(jobs)


def _locked_jobs() -> Any:
    return select(JobRecord).order_by(JobRecord.id).with_for_update().execution_options(populate_existing=True)


def _lock_job(session: Session, job_id: int) -> JobRecord:
    job: JobRecord | None = session.scalars(_locked_jobs().where(JobRecord.id == job_id)).one_or_none()
    if job is None:
        raise NotFoundError(f"there is no job {job_id}")
    return job


def _require_submission(session: Session, submission_id: int) -> None:
    if session.get(SubmissionRecord, submission_id) is None:
        raise NotFoundError(f"there is no submission {submission_id}")


def _expect_no_judgement(session: Session, submission_id: int) -> None:
    """A second answer of the same judgement would tell more of its hidden cases."""
    if is_of_judgement(session, submission_id):
        raise StateError("a judgement is decided once; ask for another one")


def _cancel(session: Session, job: JobRecord) -> None:
    job.state = JobState.CANCELLED
    job.message, job.reason = "cancelled", None
    job.finished_at = func.now()
    if job.attempt > 0:
        forget_partial(session, job.id)
    announce(session, "state", job_id=job.id, submission_id=job.submission_id)


def _retry(session: Session, job: JobRecord) -> None:
    # The worker of a job that was cancelled a moment ago may not have noticed yet.
    session.execute(
        update(RunRecord)
        .where(RunRecord.job_id == job.id, RunRecord.state == RunState.RUNNING)
        .values(state=RunState.CANCELLED, message="cancelled", finished_at=func.now())
    )
    job.state = JobState.QUEUED
    job.message = ""
    job.reason = job.unchanged_since_commit_id = job.not_before = None
    job.outages = 0
    job.progress = None
    job.judged_at = job.started_at = job.finished_at = None
    job.max_attempts = job.attempt + ATTEMPTS
    announce_queued(session, [job.device_id])
    reopen(session, job.submission_id, "measured again")
    reopen_check_run(session, job.submission_id)
    announce(session, "state", job_id=job.id, submission_id=job.submission_id)


def retell(session: Session, commit_id: int, operator_id: int) -> None:
    """Tells code hosts anew how submissions of a commit fare, whose reports say something else than when they ended."""
    jobs = JobRecord.commit_id == commit_id, JobRecord.operator_id == operator_id
    for submission_id in session.scalars(select(JobRecord.submission_id).where(*jobs).distinct()):
        reopen(session, submission_id, "judged again")
        reopen_check_run(session, submission_id)
