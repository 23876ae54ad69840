"""Imports results that were measured without a server: a whole bundle or nothing of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, text, update
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session

from warpwatch.contract.catalogue import Catalogue, CommitInfo
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import JobState, RunState
from warpwatch.db.database import storable
from warpwatch.db.errors import OutcomeError
from warpwatch.db.live import announce
from warpwatch.db.models import BundleRecord, EnvironmentRecord, JobRecord, RunRecord, SubmissionRecord
from warpwatch.db.registry import ensure_device, ensure_operators, ensure_repository, record_commits
from warpwatch.db.results import record_outcome
from warpwatch.db.tallies import forget_all_counts

_MANY_JOBS = 10
"""From this number of jobs on, an import may change how large tables are beside each other."""


@dataclass(frozen=True, slots=True)
class BundledJob:
    """One job as another machine executed it. Times are UTC."""

    request: JobRequest
    outcome: Outcome
    started_at: datetime
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class NewBundle:
    """A results file.

    sha256: digest of the whole file. commits: every commit the jobs name. jobs may be an iterator. request: `confirm`
    in it has the changes that the results show compared.
    """

    sha256: str
    name: str
    repository_name: str
    repository_url: str
    commits: list[CommitInfo]
    jobs: Iterable[BundledJob]
    request: dict[str, Any] = field(default_factory=dict)
    origin: str = "bundle"


@dataclass(frozen=True, slots=True)
class ImportedBundle:
    """new is False when the same file had been imported before; then nothing was written.

    jobs: number of jobs that no other file had brought.
    """

    submission_id: int
    new: bool
    jobs: int


def bundle_known(s: Session, sha256: str) -> int | None:
    """The submission that the file with this digest was imported as; None when it never was."""
    return s.scalar(select(BundleRecord.submission_id).where(BundleRecord.sha256 == sha256))


def import_bundle(s: Session, bundle: NewBundle) -> ImportedBundle:
    """Records every job of the bundle as done, in the caller's one transaction; OutcomeError says what cannot be
    recorded."""
    try:
        return _import(s, bundle)
    except (DataError, IntegrityError) as error:
        raise OutcomeError(
            f"the bundle holds a value that the database refuses: {str(error.orig).splitlines()[0]}"
        ) from error


def _import(s: Session, bundle: NewBundle) -> ImportedBundle:
    # Of two simultaneous imports of one file the second waits here, and then finds the first.
    key = int.from_bytes(hashlib.sha256(bundle.sha256.encode()).digest()[:8], "big", signed=True)
    s.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})
    submission_id = bundle_known(s, bundle.sha256)
    if submission_id is not None:
        if bundle.request.get("confirm"):
            # The changes that known results show are compared.
            marked = SubmissionRecord.request.op("||")({"confirm": True})
            s.execute(update(SubmissionRecord).where(SubmissionRecord.id == submission_id).values(request=marked))
            newest = select(func.max(JobRecord.id)).where(JobRecord.submission_id == submission_id).scalar_subquery()
            s.execute(update(JobRecord).where(JobRecord.id == newest).values(judged_at=None))
        return ImportedBundle(submission_id, new=False, jobs=0)
    is_example = bundle.origin == "example"
    repository_id = ensure_repository(s, bundle.repository_name, bundle.repository_url, is_example=is_example)
    commits = record_commits(s, repository_id, bundle.commits)
    submission = SubmissionRecord(repository_id=repository_id, request=bundle.request, origin=bundle.origin)
    s.add(submission)
    s.flush()
    s.add(BundleRecord(sha256=bundle.sha256, name=storable(bundle.name), submission_id=submission.id))
    count = 0
    recorded: dict[str, Catalogue] = {}
    for job in bundle.jobs:
        count += _import_job(s, submission, commits, job, recorded)
    forget_all_counts(s, list(commits.values()))
    if count >= _MANY_JOBS:
        # PostgreSQL counts by itself a minute later, and until then plans pages for tables as small as they were.
        # A table that somebody vacuums is left out, since the import need not wait for it.
        s.execute(text("ANALYZE (SKIP_LOCKED)"))
    announce(s, "state", submission_id=submission.id)
    return ImportedBundle(submission.id, new=True, jobs=count)


def _import_job(
    s: Session,
    submission: SubmissionRecord,
    commits: dict[str, int],
    bundled: BundledJob,
    recorded: dict[str, Catalogue],
) -> bool:
    """Whether the job was new: a longer file repeats the jobs of an earlier one.

    recorded: the catalogue that this import recorded last of each commit, which is not recorded again.
    """
    request = bundled.request
    for sha in (request.sha, request.base_sha):
        if sha is not None and sha not in commits:
            raise OutcomeError(f"the bundle measures the commit {short_sha(sha)}, but does not describe it")
    environment = bundled.outcome.environment
    job = JobRecord(
        submission_id=submission.id,
        kind=request.kind,
        commit_id=commits[request.sha],
        base_commit_id=None if request.base_sha is None else commits[request.base_sha],
        operator_id=ensure_operators(s, submission.repository_id, [request.operator])[request.operator],
        device_id=ensure_device(s, environment.device_key, environment.device_kind, environment.device_name),
        spec=request.spec,
        definitions_sha=request.definitions.sha if request.definitions is not None else None,
        state=JobState.DONE,
        attempt=1,
        started_at=bundled.started_at,
        finished_at=bundled.finished_at,
    )
    if _is_here(s, job):
        return False
    s.add(job)
    s.flush()
    run = RunRecord(
        job_id=job.id, attempt=1, state=RunState.DONE, started_at=bundled.started_at, finished_at=bundled.finished_at
    )
    s.add(run)
    s.flush()
    # A catalogue that the last job of the same commit brought is not recorded again.
    outcome = bundled.outcome
    sides = {request.base_sha or "": outcome.base_catalogue, request.sha: outcome.catalogue}
    new = {sha: catalogue for sha, catalogue in sides.items() if catalogue and recorded.get(sha) is not catalogue}
    recorded |= new
    record_outcome(
        s, job, run, replace(outcome, catalogue=new.get(request.sha), base_catalogue=new.get(request.base_sha or ""))
    )
    s.flush()
    # The devices page says since when an environment is known: since it measured, not since the import.
    older = (EnvironmentRecord.id == run.environment_id, EnvironmentRecord.created_at > bundled.started_at)
    s.execute(update(EnvironmentRecord).where(*older).values(created_at=bundled.started_at))
    # A bundle may hold thousands of jobs; none of their rows is needed again.
    s.expunge(run)
    s.expunge(job)
    return True


def _is_here(s: Session, job: JobRecord) -> bool:
    """Whether another submission has the same job; a device executes one at a time, so its times identify it."""
    same = (
        JobRecord.commit_id,
        JobRecord.kind,
        JobRecord.operator_id,
        JobRecord.device_id,
        JobRecord.started_at,
        JobRecord.finished_at,
    )
    alike = (column == getattr(job, column.key) for column in same)
    return (
        s.scalar(select(JobRecord.id).where(*alike, JobRecord.submission_id != job.submission_id).limit(1)) is not None
    )


def date_back(s: Session, operator_id: int, at: datetime) -> None:
    """Gives what this transaction wrote about an operator's changes the time of the imported results that it was drawn
    from: the history of another machine did not happen when its file was read."""
    s.flush()
    # In a transaction now() stays the same: nothing that was written before is as late.
    own = "regression_id IN (SELECT id FROM regressions WHERE operator_id = :operator_id)"
    written = (
        ("regressions", "operator_id = :operator_id", ("created_at", "decided_at", "settled_at")),
        ("trials", own, ("created_at", "answered_at")),
        ("regression_notes", own, ("created_at",)),
    )
    for table, condition, columns in written:
        for column in columns:
            # Nothing is decided before it was suspected.
            value = ":at" if column == "created_at" else "greatest(created_at, :at)"
            sql = f"UPDATE {table} SET {column} = {value} WHERE {condition} AND {column} >= now()"
            s.execute(text(sql), {"operator_id": operator_id, "at": at})
