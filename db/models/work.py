"""Tables of work: submissions, jobs, runs, logs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import JobKind, JobState, Reason, RunState, ScheduleKind
from warpwatch.db.models.base import Base, created, one_of


class SubmissionRecord(Base):
    __tablename__ = "submissions"
    __table_args__ = (
        Index(None, "repository_id", "id"),
        Index(None, "base_commit_id", postgresql_where="base_commit_id IS NOT NULL"),
        Index(None, "change_id", postgresql_where="change_id IS NOT NULL"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    request: Mapped[dict[str, Any]]
    """The request as the caller sent it."""
    idempotency_key: Mapped[str | None] = mapped_column(unique=True)
    priority: Mapped[int] = mapped_column(server_default="0")
    origin: Mapped[str] = mapped_column(server_default="api")
    """api | form | cli | webhook | comment | schedule | confirm | bundle | example."""
    base_commit_id: Mapped[int | None] = mapped_column(ForeignKey("commits.id", ondelete="SET NULL"))
    """Base of a change: the merge base of a pull request, the commit before a push."""
    schedule_id: Mapped[int | None] = mapped_column(ForeignKey("schedules.id", ondelete="SET NULL"), index=True)
    change_id: Mapped[int | None] = mapped_column(ForeignKey("change_requests.id", ondelete="SET NULL"))
    """The pull or merge request whose comment shows its report."""
    created_at: Mapped[datetime] = created()


class ScheduleRecord(Base):
    """Work that nobody has to ask for, within a budget of device minutes per day."""

    __tablename__ = "schedules"
    __table_args__ = (
        one_of("kind", ScheduleKind),
        UniqueConstraint("repository_id", "name"),
        Index("ix_schedules_due", "next_at", postgresql_where="is_enabled"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    name: Mapped[str]
    kind: Mapped[str]
    cron: Mapped[str]
    """When, in UTC: minute, hour, day of month, month, day of week."""
    request: Mapped[dict[str, Any]]
    """operators, suite, device and what else a submission says; commits are chosen by the kind."""
    budget_minutes: Mapped[int]
    is_enabled: Mapped[bool] = mapped_column(server_default="true")
    last_at: Mapped[datetime | None]
    next_at: Mapped[datetime | None]
    message: Mapped[str] = mapped_column(server_default="")
    """Result of the last scheduled run, or the reason why the schedule did nothing."""
    created_at: Mapped[datetime] = created()


class CallbackRecord(Base):
    """A commit status that another system is to be told, tried again until it is."""

    __tablename__ = "callbacks"
    __table_args__ = (
        Index(None, "submission_id"),
        Index(None, "url"),
        Index(None, "repository_id"),
        CheckConstraint("(submission_id IS NULL) <> (repository_id IS NULL)", name="one_subject"),
        Index("ix_callbacks_due", "next_at", postgresql_where="sent_at IS NULL AND given_up_at IS NULL"),
        Index("ix_callbacks_given_up", "given_up_at", postgresql_where="given_up_at IS NOT NULL"),
        Index("ix_callbacks_open", "id", postgresql_where="concluded_at IS NULL"),
        Index("ix_callbacks_claimed", "claimed_until", postgresql_where="claimed_until IS NOT NULL"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    submission_id: Mapped[int | None] = mapped_column(ForeignKey("submissions.id", ondelete="CASCADE"))
    repository_id: Mapped[int | None] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    """Of a commit that no submission measures: one of a fork, which waits for a member."""
    url: Mapped[str]
    body: Mapped[dict[str, Any]]
    attempts: Mapped[int] = mapped_column(server_default="0")
    next_at: Mapped[datetime] = created()
    message: Mapped[str] = mapped_column(server_default="")
    """The last error."""
    created_at: Mapped[datetime] = created()
    sent_at: Mapped[datetime | None]
    given_up_at: Mapped[datetime | None]
    concluded_at: Mapped[datetime | None]
    """When the submission came to the end that this status, or a later one, tells; until then it says `pending`, or
    that the submission fails so far."""
    claimed_until: Mapped[datetime | None]
    """Until when the server that is sending it may take; None while none is."""


class JobRecord(Base):
    """One unit of queue work: kind × commit × operator × device."""

    __tablename__ = "jobs"
    __table_args__ = (
        one_of("kind", JobKind),
        one_of("state", JobState),
        one_of("reason", Reason),
        Index(None, "submission_id", "id"),
        Index(None, "state", "id"),
        Index(None, "operator_id", "id"),
        # In the order of the queue: a claim reads the first row that no other claim has locked.
        Index(
            "ix_jobs_open", "device_id", text("priority DESC"), "id", postgresql_where="state IN ('queued', 'running')"
        ),
        Index(
            "ix_jobs_unjudged", "id", postgresql_where="state IN ('done', 'failed', 'cancelled') AND judged_at IS NULL"
        ),
        Index(None, "commit_id", "operator_id"),
        Index(None, "base_commit_id", postgresql_where="base_commit_id IS NOT NULL"),
        Index(None, "unchanged_since_commit_id", postgresql_where="unchanged_since_commit_id IS NOT NULL"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    submission_id: Mapped[int] = mapped_column(ForeignKey("submissions.id", ondelete="CASCADE"))
    kind: Mapped[str]
    commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    base_commit_id: Mapped[int | None] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    """compare jobs only: the commit measured beside `commit_id`."""
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"))
    spec: Mapped[JobSpec]
    """Data that the worker needs besides the columns, as JSON; see contract.spec.JobSpec."""
    priority: Mapped[int] = mapped_column(server_default="0")
    state: Mapped[str] = mapped_column(server_default=JobState.QUEUED)
    attempt: Mapped[int] = mapped_column(server_default="0")
    """Number of the run that owns the job; a run with a smaller number may write nothing."""
    max_attempts: Mapped[int] = mapped_column(server_default="3")
    """Number of its last run: when that one is lost the job fails.

    A run handed back, and a retry by a person, raise it.
    """
    outages: Mapped[int] = mapped_column(server_default="0")
    """How many of its runs ended in an outage, which are no attempts; see contract.words.OUTAGES."""
    not_before: Mapped[datetime | None]
    """When it may run again, after a run that failed; None once it runs."""
    message: Mapped[str] = mapped_column(server_default="")
    """For people; what is decided from is `state` and `reason`."""
    reason: Mapped[str | None]
    """Why the job has no results of its own, where that is one of contract.words.Reason."""
    definitions_sha: Mapped[str | None]
    """The version of the repository's definitions that the job measures; None where its commit defines the operator."""
    unchanged_since_commit_id: Mapped[int | None] = mapped_column(ForeignKey("commits.id", ondelete="SET NULL"))
    """The commit whose results are this job's too, where the reason is `unchanged`."""
    progress: Mapped[dict[str, Any] | None]
    """{"done": n, "total": m, "text": …} of the current run."""
    trace_parent: Mapped[str | None]
    """The span that asked for it, as TRACE_PARENT of contract.claims has it; None where nothing is traced."""
    judged_at: Mapped[datetime | None]
    """When verdicts were drawn from its end: from its results, or, of a compare job, from the lack of them."""
    created_at: Mapped[datetime] = created()
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class RunRecord(Base):
    """One attempt at a job by one worker."""

    __tablename__ = "runs"
    __table_args__ = (
        one_of("state", RunState),
        one_of("reason", Reason),
        UniqueConstraint("job_id", "attempt"),
        Index("ix_runs_running", "id", postgresql_where="state = 'running'"),
        Index("ix_runs_uncounted", "id", postgresql_where="state = 'done' AND statuses IS NULL"),
        Index(None, "finished_at"),
        # No index holds the heartbeat, and pages have room for its next version: no heartbeat writes to an index.
        {"postgresql_with": {"fillfactor": 70}},
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    worker_id: Mapped[int | None] = mapped_column(ForeignKey("workers.id", ondelete="SET NULL"), index=True)
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environments.id", ondelete="SET NULL"), index=True)
    card_id: Mapped[int | None] = mapped_column(ForeignKey("cards.id", ondelete="SET NULL"), index=True)
    card_facts: Mapped[dict[str, Any] | None]
    """Those of the card when it was measured: a card may move, or get another VBIOS."""
    state: Mapped[str] = mapped_column(server_default=RunState.RUNNING)
    message: Mapped[str] = mapped_column(server_default="")
    reason: Mapped[str | None]
    """Why the run measured nothing, where that is one of contract.words.Reason."""
    struck_out_at: Mapped[datetime | None]
    """When a person struck its results out; see ResultRecord."""
    struck_out_reason: Mapped[str | None]
    statuses: Mapped[dict[str, Any] | None]
    """Number of its results by status, once the server counted them; see db.tallies."""
    times: Mapped[dict[str, Any] | None]
    """Seconds of the run by activity, as JSON; see contract.activities.RunTimes."""
    yielded_to_job_id: Mapped[int | None]
    """The more urgent job that it made room for, which may have been deleted since."""
    started_at: Mapped[datetime] = created()
    heartbeat_at: Mapped[datetime] = created()
    finished_at: Mapped[datetime | None]


class PartialOutcomeRecord(Base):
    """Findings of interrupted runs of a job; deleted once the job has ended. See contract.outcome.PartialOutcome."""

    __tablename__ = "partial_outcomes"
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    environment_key: Mapped[str]
    findings: Mapped[list[Any]]
    comparisons: Mapped[list[Any]] = mapped_column(server_default="[]")


class RunLogRecord(Base):
    """A piece of a run's log, in order of id; the job page streams them."""

    __tablename__ = "run_logs"
    __table_args__ = (Index(None, "run_id", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    text: Mapped[str]
    created_at: Mapped[datetime] = created()
