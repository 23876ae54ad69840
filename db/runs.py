"""The life of a run, and the fence: only the run that owns its job may write.

A run owns its job while the job is running, the run is running, and the job's attempt is the run's. Everything that
ends a run first locks the job's row and proves that; a run that was given up meanwhile gets StaleRunError and has
written nothing.
"""

from __future__ import annotations

from datetime import timedelta
from time import perf_counter
from typing import Any, Literal

from sqlalchemy import bindparam, func, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from warpwatch.contract.activities import Activity, RunTimes
from warpwatch.contract.claims import ClaimedJob
from warpwatch.contract.codec import to_json
from warpwatch.contract.outcome import Outcome, PartialOutcome
from warpwatch.contract.spec import DefinitionsVersion, JobRequest, SourcePatch
from warpwatch.contract.words import OUTAGES, JobKind, JobState, Reason, RunState
from warpwatch.db.columns import StoredSpec
from warpwatch.db.database import storable
from warpwatch.db.errors import StaleRunError
from warpwatch.db.judgements import SEALED_MESSAGE, SealedJobRecord, store_sealed_outcome, unseal
from warpwatch.db.live import announce, announce_queued
from warpwatch.db.models import JobRecord, RunRecord
from warpwatch.db.patches import is_patch, store_outcome
from warpwatch.db.results import OutcomeNames, record_crash, record_names, record_outcome
from warpwatch.db.urgent import forget_partial, keep_partial, read_partial

Ownership = Literal["continue", "urgent", "cancel", "lost"]
ATTEMPTS = 3
"""Runs a job may lose before it fails, counted anew when a person asks for a retry."""
FIRST_PAUSE_SECONDS = 5.0
"""Between a job's first run that failed and its next; each further pause is twice as long."""
LONGEST_PAUSE_SECONDS = 600.0
MAX_OUTAGES = 150
"""How many outages a job waits out: about a day."""

_REQUEST = """job.kind, job.spec, repositories.url, commits.sha, base.sha AS base_sha, operators.name AS operator,
repositories.definitions_url, job.definitions_sha, job.trace_parent, patches.base_sha AS patch_base_sha,
patches.content AS patch, sealed_jobs.cases AS sealed_cases, sealed_jobs.seed AS sealed_seed"""
_OF_REQUEST = """
JOIN submissions ON submissions.id = job.submission_id
JOIN repositories ON repositories.id = submissions.repository_id
JOIN commits ON commits.id = job.commit_id
LEFT JOIN patches ON patches.id = commits.patch_id
LEFT JOIN sealed_jobs ON sealed_jobs.job_id = job.id
LEFT JOIN commits AS base ON base.id = job.base_commit_id
JOIN operators ON operators.id = job.operator_id
"""
# Each of a hundred workers asks these several times a second, so they are not built anew each time.
_BEGIN = text(f"""
WITH job AS (
    UPDATE jobs SET state = 'running', attempt = attempt + 1, progress = NULL, not_before = NULL, started_at = now()
    WHERE id = :job_id AND state = 'queued' RETURNING *
), run AS (
    INSERT INTO runs (job_id, attempt, worker_id) SELECT id, attempt, :worker_id FROM job RETURNING id
)
SELECT run.id AS run_id, job.attempt, job.submission_id, {_REQUEST} FROM job CROSS JOIN run {_OF_REQUEST}
""").columns(spec=StoredSpec())
_CLAIM_NEXT = text(f"""
WITH next AS (
    SELECT id FROM jobs
    WHERE device_id = :device_id AND state = 'queued' AND (not_before IS NULL OR not_before <= now())
    ORDER BY priority DESC, id LIMIT 1 FOR UPDATE SKIP LOCKED
), job AS (
    UPDATE jobs SET state = 'running', attempt = attempt + 1, progress = NULL, not_before = NULL, started_at = now()
    FROM next WHERE jobs.id = next.id RETURNING jobs.*
), run AS (
    INSERT INTO runs (job_id, attempt, worker_id) SELECT id, attempt, :worker_id FROM job RETURNING id
)
SELECT job.id AS job_id, run.id AS run_id, job.attempt, job.submission_id, {_REQUEST}
FROM job CROSS JOIN run {_OF_REQUEST}
""").columns(spec=StoredSpec())
_OWNED = text(f"""
SELECT job.id AS job_id, runs.id AS run_id, job.attempt, {_REQUEST}
FROM runs JOIN jobs AS job ON job.id = runs.job_id AND job.attempt = runs.attempt {_OF_REQUEST}
WHERE runs.worker_id = :worker_id AND runs.state = 'running' AND job.state = 'running'
  AND runs.id > :after AND (CAST(:run_id AS bigint) IS NULL OR runs.id = :run_id)
ORDER BY runs.id LIMIT 1
""").columns(spec=StoredSpec())
_WAITING = text(f"""
SELECT {_REQUEST} FROM jobs AS job {_OF_REQUEST}
WHERE job.device_id = :device_id AND job.state = 'queued' ORDER BY job.priority DESC, job.id LIMIT :limit
""").columns(spec=StoredSpec())
_COUNT_WAITING = text("""
SELECT count(*) FROM jobs JOIN devices ON devices.id = jobs.device_id
WHERE devices.key = :device_key AND jobs.state = 'queued' AND (jobs.not_before IS NULL OR jobs.not_before <= now())
""")
# A sealed job makes no room between two measurements, because that would show when each of them ends.
_OWNERSHIP = """
runs.attempt, jobs.state, jobs.attempt AS current, NOT jobs.spec ? 'sealed' AND EXISTS (
    SELECT FROM jobs AS waiting
    WHERE waiting.device_id = jobs.device_id AND waiting.state = 'queued' AND waiting.priority > jobs.priority
) AS is_urgent
"""
_OWNER = text(f"""
SELECT {_OWNERSHIP} FROM runs JOIN jobs ON jobs.id = runs.job_id WHERE runs.id = :run_id AND runs.state = 'running'
""")
_HEARTBEAT = text(f"""
UPDATE runs SET heartbeat_at = clock_timestamp() FROM jobs
WHERE runs.id = :run_id AND runs.state = 'running' AND jobs.id = runs.job_id RETURNING {_OWNERSHIP}
""")
# A sealed job shows neither log nor progress: they name cases, and the pace of their steps tells how large cases are.
_APPEND = text("""
WITH run AS (
    SELECT id, job_id, EXISTS (SELECT FROM sealed_jobs WHERE job_id = runs.job_id) AS is_sealed
    FROM runs WHERE id = :run_id AND state = 'running'
), piece AS (
    INSERT INTO run_logs (run_id, text) SELECT id, :text FROM run WHERE NOT is_sealed
)
SELECT job_id, is_sealed FROM run
""")
_PROGRESS = text("""
UPDATE jobs SET progress = CASE WHEN sealed.job_id IS NULL THEN CAST(:progress AS jsonb) END
FROM runs LEFT JOIN sealed_jobs AS sealed ON sealed.job_id = runs.job_id
WHERE runs.id = :run_id AND jobs.id = runs.job_id AND jobs.attempt = runs.attempt AND jobs.state = 'running'
RETURNING jobs.id, jobs.submission_id, sealed.job_id IS NOT NULL AS is_sealed
""").bindparams(bindparam("progress", type_=JSONB))


def begin_run(session: Session, job_id: int, worker_id: int | None) -> ClaimedJob | None:
    """Gives the job to a new run of the worker; None when the job is no longer queued."""
    row = session.execute(_BEGIN, {"job_id": job_id, "worker_id": worker_id}).one_or_none()
    if row is None:
        return None
    announce(session, "state", job_id=job_id, submission_id=row.submission_id)
    return _claimed(session, job_id, row)


def claim_next(session: Session, device_id: int, worker_id: int) -> ClaimedJob | None:
    """Gives the device's next job to a new run of the worker; None when none waits.

    Of workers that ask at once each gets another job, and none waits for another.
    """
    row = session.execute(_CLAIM_NEXT, {"device_id": device_id, "worker_id": worker_id}).one_or_none()
    if row is None:
        return None
    announce(session, "state", job_id=row.job_id, submission_id=row.submission_id)
    return _claimed(session, row.job_id, row)


def find_owned(session: Session, worker_id: int, *, run_id: int | None = None, after: int = 0) -> ClaimedJob | None:
    """The job of the worker's first run after `after` that owns one, or of the one run that is asked for."""
    row = session.execute(_OWNED, {"worker_id": worker_id, "run_id": run_id, "after": after}).one_or_none()
    return None if row is None else _claimed(session, row.job_id, row)


def _claimed(session: Session, job_id: int, row: Any) -> ClaimedJob:
    partial = read_partial(session, job_id) if row.attempt > 1 else None
    return ClaimedJob(job_id, row.run_id, row.attempt, _request(row), partial, row.trace_parent)


def list_waiting(session: Session, device_id: int, limit: int) -> list[JobRequest]:
    """The jobs of a device that its workers take next, the first one first."""
    return [_request(row) for row in session.execute(_WAITING, {"device_id": device_id, "limit": limit})]


def count_waiting(session: Session, device_key: str) -> int:
    """How many jobs wait for a device and may run now."""
    return session.scalar(_COUNT_WAITING, {"device_key": device_key}) or 0


def _request(row: Any) -> JobRequest:
    definitions = None
    if row.definitions_url is not None and row.definitions_sha is not None:
        definitions = DefinitionsVersion(row.definitions_url, row.definitions_sha)
    patch = SourcePatch(row.patch_base_sha, bytes(row.patch)) if row.patch is not None else None
    spec = unseal(row.spec, row.kind, row.sealed_cases, row.sealed_seed)
    return JobRequest(JobKind(row.kind), row.url, row.sha, row.operator, spec, row.base_sha, definitions, patch)


def heartbeat(session: Session, run_id: int) -> Ownership:
    """Renews the run's lease; answers like `read_ownership`."""
    return _ownership(session.execute(_HEARTBEAT, {"run_id": run_id}).one_or_none())


def read_ownership(session: Session, run_id: int) -> Ownership:
    """Whether the run still owns its job.

    "urgent": it does, and a more urgent job waits for the device, see `find_urgent`; "cancel": somebody cancelled the
    job; "lost": the run may write nothing.
    """
    return _ownership(session.execute(_OWNER, {"run_id": run_id}).one_or_none())


def _ownership(row: Any) -> Ownership:
    if row is None:
        return "lost"
    if row.state == JobState.CANCELLED:
        return "cancel"
    if row.state != JobState.RUNNING or row.attempt != row.current:
        return "lost"
    return "urgent" if row.is_urgent else "continue"


def append_log(session: Session, run_id: int, piece: str) -> None:
    """Adds a piece to the run's log; StaleRunError when the run has ended."""
    row = session.execute(_APPEND, {"run_id": run_id, "text": storable(piece)}).one_or_none()
    if row is None:
        raise StaleRunError
    if not row.is_sealed:
        announce(session, "log", job_id=row.job_id)


def set_progress(
    session: Session, run_id: int, done: int, total: int, step: str, cell: tuple[str, str] | None = None
) -> None:
    """Writes the run's progress; StaleRunError when it no longer owns its job. cell: the variant and case it is at."""
    progress = {"done": done, "total": total, "text": step, "cell": cell}
    row = session.execute(_PROGRESS, {"run_id": run_id, "progress": progress}).one_or_none()
    if row is None:
        raise StaleRunError
    if not row.is_sealed:
        announce(session, "progress", job_id=row.id, submission_id=row.submission_id)


def prepare_finish(session: Session, job_id: int, outcome: Outcome) -> OutcomeNames:
    """Writes what the outcome names, in a transaction before that of `finish_run`; see `record_names`."""
    return record_names(session, session.get_one(JobRecord, job_id), outcome)


def finish_run(
    session: Session, run_id: int, outcome: Outcome, names: OutcomeNames | None = None, times: RunTimes | None = None
) -> None:
    """Records the outcome and ends the job, in one transaction; StaleRunError when the run does not own its job.

    names: from `prepare_finish`; without them, everybody who records the same names waits for this transaction. times:
    what the run spent its time on before.
    """
    begin = perf_counter()
    run, job = lock_owned_run(session, run_id)
    record_outcome(session, job, run, outcome, names)
    _end(session, run, job, RunState.DONE, JobState.DONE, "")
    if times is not None:
        store_times(session, run_id, times.with_more(Activity.RECORD, perf_counter() - begin))


def finish_patch_run(session: Session, run_id: int, outcome: Outcome, times: RunTimes) -> None:
    """Ends the job of a patch with its outcome, which is stored apart from all results; otherwise like finish_run."""
    run, job = lock_owned_run(session, run_id)
    if not store_sealed_outcome(session, job.id, outcome):
        store_outcome(session, job.id, outcome)
    _end(session, run, job, RunState.DONE, JobState.DONE, "")
    store_times(session, run_id, times)


def store_times(session: Session, run_id: int, times: RunTimes) -> None:
    """Writes what a run spent its time on, in the transaction that ends it; of a sealed job nothing."""
    is_open = RunRecord.job_id.not_in(select(SealedJobRecord.job_id))
    session.execute(update(RunRecord).where(RunRecord.id == run_id, is_open).values(times=to_json(times)))


def fail_run(session: Session, run_id: int, message: str, *, retry: bool, reason: Reason | None = None) -> None:
    """Ends a run that could not execute its job.

    With `retry` the job is queued again after a pause, unless this was its last attempt. After an outage it is always
    queued again, because that is no attempt, until it had MAX_OUTAGES.
    """
    run, job = lock_owned_run(session, run_id)
    if reason in OUTAGES and job.outages < MAX_OUTAGES:
        job.outages += 1
        job.max_attempts += 1
        _wait(session, job, job.outages)
        _end(session, run, job, RunState.FAILED, JobState.QUEUED, message, reason)
    elif retry and reason not in OUTAGES and job.attempt < job.max_attempts:
        _wait_after_attempt(session, job)
        _end(session, run, job, RunState.FAILED, JobState.QUEUED, message, reason)
    else:
        _end(session, run, job, RunState.FAILED, JobState.FAILED, message, reason)


def _wait(session: Session, job: JobRecord, failures: int) -> None:
    """Keeps the job from running for a while: longer after each failure in a row."""
    pause = min(FIRST_PAUSE_SECONDS * 2 ** (failures - 1), LONGEST_PAUSE_SECONDS)
    # The clock of the database, because hosts differ.
    job.not_before = session.scalars(select(func.clock_timestamp())).one() + timedelta(seconds=pause)


def _wait_after_attempt(session: Session, job: JobRecord) -> None:
    _wait(session, job, max(1, ATTEMPTS - (job.max_attempts - job.attempt)))


def cancelled_run(session: Session, run_id: int) -> None:
    """Confirms that the run of a cancelled job has stopped; a run that had already ended stays as it is."""
    stopped = {"state": RunState.CANCELLED, "message": "cancelled", "finished_at": func.now()}
    ended = update(RunRecord).where(RunRecord.id == run_id, RunRecord.state == RunState.RUNNING).values(stopped)
    job_id = session.scalar(ended.returning(RunRecord.job_id))
    if job_id is not None:
        announce(session, "state", job_id=job_id)


def settle_stale_run(session: Session, run_id: int, state: RunState, times: RunTimes) -> bool:
    """Whether a run that owns no job has ended as `state` all the same: its job was cancelled, or it ended before, and
    its worker did not hear the answer."""
    cancelled_run(session, run_id)
    if session.scalar(select(RunRecord.state).where(RunRecord.id == run_id)) != state:
        return False
    if state == RunState.CANCELLED:
        store_times(session, run_id, times)
    return True


def release_run(session: Session, run_id: int, partial: PartialOutcome | None = None) -> None:
    """Puts the job of a run back into the queue because its worker was asked to stop; the attempt does not count.

    partial: what it found, which the next run need not measure.
    """
    run, job = _lock_interrupted(session, run_id, partial)
    _end(session, run, job, RunState.LOST, JobState.QUEUED, "handed back: its worker was stopped")


def yield_run(session: Session, run_id: int, urgent_job_id: int, partial: PartialOutcome | None = None) -> None:
    """The same because a more urgent job waits for the device."""
    run, job = _lock_interrupted(session, run_id, partial)
    run.yielded_to_job_id = urgent_job_id
    _end(session, run, job, RunState.YIELDED, JobState.QUEUED, f"paused for job {urgent_job_id}")


def _lock_interrupted(session: Session, run_id: int, partial: PartialOutcome | None) -> tuple[RunRecord, JobRecord]:
    run, job = lock_owned_run(session, run_id)
    job.max_attempts += 1
    if partial is not None:
        keep_partial(session, job.id, partial)
    return run, job


def lose_run(session: Session, run_id: int, message: str) -> int | None:
    """Takes the job away from a run whose worker is silent: back into the queue, or failed after its last attempt.

    Returns the job's id; None when the run ended meanwhile, or is about to: its job's row is locked.
    """
    job_id = session.scalar(select(RunRecord.job_id).where(RunRecord.id == run_id))
    job = session.scalars(
        select(JobRecord)
        .where(JobRecord.id == job_id)
        .with_for_update(skip_locked=True)
        .execution_options(populate_existing=True)
    ).one_or_none()
    run = session.get(RunRecord, run_id, populate_existing=True)
    if job is None or run is None or run.state != RunState.RUNNING:
        return None
    if job.state != JobState.RUNNING or job.attempt != run.attempt:
        # The job was cancelled or belongs to another run; only this run ends.
        run.state, run.message, run.finished_at = RunState.LOST, message, func.now()
    elif job.attempt < job.max_attempts:
        _wait_after_attempt(session, job)
        _end(session, run, job, RunState.LOST, JobState.QUEUED, message, Reason.WORKER_LOST)
    else:
        message = f"gave up after {job.attempt} attempts; the last one: {message}"
        cell = (job.progress or {}).get("cell")
        if cell is not None:
            message += f", while it ran {cell[0]} on {cell[1]}"
            if not is_patch(session, job.commit_id):
                record_crash(session, job, run, cell, message)
        _end(session, run, job, RunState.LOST, JobState.FAILED, message, Reason.WORKER_LOST)
    return job.id


def lock_owned_run(session: Session, run_id: int) -> tuple[RunRecord, JobRecord]:
    """Locks the job of a run and proves that the run owns it; StaleRunError otherwise.

    Only the job's row is locked: the run's own row stays free for its heartbeat while results are being written.
    """
    job_id = select(RunRecord.job_id).where(RunRecord.id == run_id).scalar_subquery()
    locked = select(JobRecord).where(JobRecord.id == job_id).with_for_update()
    job = session.scalars(locked.execution_options(populate_existing=True)).one_or_none()
    run = session.get(RunRecord, run_id, populate_existing=True)
    if job is None or run is None or run.state != RunState.RUNNING:
        raise StaleRunError
    if job.state != JobState.RUNNING or job.attempt != run.attempt:
        raise StaleRunError
    return run, job


def _end(
    session: Session,
    run: RunRecord,
    job: JobRecord,
    run_state: RunState,
    job_state: JobState,
    message: str,
    reason: Reason | None = None,
) -> None:
    # Writing the results takes a part of the transaction, which `now()` would leave out.
    ended_at = func.clock_timestamp()
    if job.spec.sealed:
        message, reason = SEALED_MESSAGE if message else "", None
    run.state, run.message, run.reason, run.finished_at = run_state, storable(message), reason, ended_at
    job.state, job.message, job.reason, job.progress = job_state, storable(message), reason, None
    if job_state == JobState.QUEUED:
        job.started_at = None
        announce_queued(session, [job.device_id])
    else:
        job.finished_at = ended_at
        if run.attempt > 1:
            forget_partial(session, job.id)
    announce(session, "state", job_id=job.id, submission_id=job.submission_id)
