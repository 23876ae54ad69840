"""The tables. One class per table, in the order things come to be: code, devices, work, results, verdicts.

Durations are nanoseconds, sizes are bytes, times are UTC with time zone.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Status(StrEnum):
    """How one variant fared on one case. Held equal to worker.protocol.Status by a test."""

    OK = "ok"
    WRONG = "wrong"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    BUILD_FAILED = "build_failed"
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"


class JobState(StrEnum):
    """queued → running → done | failed | cancelled; running → queued when its worker was lost; failed | cancelled | done → queued on retry."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RunState(StrEnum):
    """running → done (results recorded) | failed (could not run) | lost (lease ran out) | cancelled."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"


class JobKind(StrEnum):
    CHECK = "check"
    BENCH = "bench"
    PROFILE = "profile"
    COMPARE = "compare"


class Verdict(StrEnum):
    """suspected → confirmed | dismissed | unsure, decided by an interleaved comparison."""

    SUSPECTED = "suspected"
    CONFIRMED = "confirmed"
    DISMISSED = "dismissed"
    UNSURE = "unsure"


class Triage(StrEnum):
    """What people made of a confirmed change; any state may follow any other, with a note."""

    NEW = "new"
    ACKNOWLEDGED = "acknowledged"
    ACCEPTED = "accepted"
    FIXED = "fixed"
    INVALID = "invalid"


def _one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar = {
        str: Text(),
        int: BigInteger(),
        bytes: LargeBinary(),
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB(),
        list[Any]: JSONB(),
    }


def _created() -> Mapped[datetime]:
    return mapped_column(server_default=func.now())


# --- code -----------------------------------------------------------------------------------------------------


class Repository(Base):
    __tablename__ = "repositories"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    url: Mapped[str]
    """What git clones: a path or a URL."""
    created_at: Mapped[datetime] = _created()


class Commit(Base):
    __tablename__ = "commits"
    __table_args__ = (
        UniqueConstraint("repository_id", "sha"),
        Index(None, "repository_id", "ordinal"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    sha: Mapped[str]
    parent_sha: Mapped[str | None]
    ordinal: Mapped[int]
    """Number of its ancestors, itself included: order in history that does not depend on when it was measured."""
    author: Mapped[str]
    authored_at: Mapped[datetime]
    subject: Mapped[str]
    catalogue: Mapped[dict[str, Any] | None]
    """worker.protocol.Catalogue as JSON, once a worker has read it."""


class Operator(Base):
    __tablename__ = "operators"
    __table_args__ = (UniqueConstraint("repository_id", "name"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    name: Mapped[str]
    summary: Mapped[str] = mapped_column(server_default="")


class Variant(Base):
    __tablename__ = "variants"
    __table_args__ = (UniqueConstraint("operator_id", "name"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    name: Mapped[str]
    idea: Mapped[str] = mapped_column(server_default="")


class Case(Base):
    __tablename__ = "cases"
    __table_args__ = (UniqueConstraint("operator_id", "key"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    key: Mapped[str]
    sizes: Mapped[dict[str, Any]]
    precision: Mapped[str]
    direction: Mapped[str]
    layout: Mapped[str]
    suites: Mapped[list[Any]]
    flops: Mapped[int]
    bytes: Mapped[int]


# --- devices --------------------------------------------------------------------------------------------------


class Device(Base):
    """A model of hardware; workers with the same model share one queue."""

    __tablename__ = "devices"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str]
    name: Mapped[str]
    created_at: Mapped[datetime] = _created()


class Environment(Base):
    """Software and hardware fingerprint, stored once; points refer to it."""

    __tablename__ = "environments"
    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"), index=True)
    key: Mapped[str] = mapped_column(unique=True)
    facts: Mapped[dict[str, Any]]
    peaks: Mapped[dict[str, Any] | None]
    """Measured ceilings: "copy" in bytes per second, precisions in FLOP per second."""
    created_at: Mapped[datetime] = _created()


class Worker(Base):
    __tablename__ = "workers"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    """host, process and device, such as `node7-4242-cpu`."""
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"), index=True)
    version: Mapped[str]
    started_at: Mapped[datetime] = _created()
    heartbeat_at: Mapped[datetime] = _created()
    stopped_at: Mapped[datetime | None]
    facts: Mapped[dict[str, Any]] = mapped_column(server_default="{}")


# --- work -----------------------------------------------------------------------------------------------------


class Submission(Base):
    __tablename__ = "submissions"
    __table_args__ = (Index(None, "repository_id", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    request: Mapped[dict[str, Any]]
    """What was asked for, as it was asked."""
    idempotency_key: Mapped[str | None] = mapped_column(unique=True)
    priority: Mapped[int] = mapped_column(server_default="0")
    origin: Mapped[str] = mapped_column(server_default="api")
    """api | form | cli | confirm | bundle | example."""
    created_at: Mapped[datetime] = _created()


class Job(Base):
    """One unit of queue work: kind × commit × operator × device."""

    __tablename__ = "jobs"
    __table_args__ = (
        _one_of("kind", JobKind),
        _one_of("state", JobState),
        Index(None, "submission_id", "id"),
        Index(None, "state", "id"),
        Index("ix_jobs_open", "device_id", "priority", "id", postgresql_where="state IN ('queued', 'running')"),
        Index("ix_jobs_unjudged", "id", postgresql_where="state IN ('done', 'failed', 'cancelled') AND judged_at IS NULL"),
        Index(None, "commit_id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    submission_id: Mapped[int] = mapped_column(ForeignKey("submissions.id", ondelete="CASCADE"))
    kind: Mapped[str]
    commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    base_commit_id: Mapped[int | None] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    """compare jobs only: the commit measured beside `commit_id`."""
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"))
    spec: Mapped[dict[str, Any]]
    """suite, variants, cases, seed, budget: what the worker needs besides the columns."""
    priority: Mapped[int] = mapped_column(server_default="0")
    state: Mapped[str] = mapped_column(server_default=JobState.QUEUED)
    attempt: Mapped[int] = mapped_column(server_default="0")
    """Number of the run that owns the job; a run with a smaller number may write nothing."""
    max_attempts: Mapped[int] = mapped_column(server_default="3")
    """Number of its last run: when that one is lost the job fails. A run handed back, and a retry by a person, raise it."""
    ticket: Mapped[int | None]
    """The queue's job (procrastinate_jobs.id) that brings it to a worker. Only a hint: begin_run decides who gets it."""
    message: Mapped[str] = mapped_column(server_default="")
    progress: Mapped[dict[str, Any] | None]
    """{"done": n, "total": m, "text": …} of the current run."""
    judged_at: Mapped[datetime | None]
    """When verdicts were drawn from its end: from its results, or, of a compare job, from the lack of them."""
    created_at: Mapped[datetime] = _created()
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class Run(Base):
    """One attempt at a job by one worker."""

    __tablename__ = "runs"
    __table_args__ = (
        _one_of("state", RunState),
        UniqueConstraint("job_id", "attempt"),
        Index("ix_runs_running", "heartbeat_at", postgresql_where="state = 'running'"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    worker_id: Mapped[int | None] = mapped_column(ForeignKey("workers.id", ondelete="SET NULL"), index=True)
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environments.id", ondelete="SET NULL"), index=True)
    state: Mapped[str] = mapped_column(server_default=RunState.RUNNING)
    message: Mapped[str] = mapped_column(server_default="")
    started_at: Mapped[datetime] = _created()
    heartbeat_at: Mapped[datetime] = _created()
    finished_at: Mapped[datetime | None]


class RunLog(Base):
    """A piece of a run's log, in order of id; the job page streams them."""

    __tablename__ = "run_logs"
    __table_args__ = (Index(None, "run_id", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    text: Mapped[str]
    created_at: Mapped[datetime] = _created()


# --- results --------------------------------------------------------------------------------------------------


class Result(Base):
    """How one variant fared on one case in one run. `details` holds the tensor errors of a check, the health of a bench."""

    __tablename__ = "results"
    __table_args__ = (
        _one_of("status", Status),
        # A compare job has results of two commits.
        UniqueConstraint("run_id", "commit_id", "variant_id", "case_id"),
        Index(None, "commit_id", "operator_id", "kind", "device_id"),
        Index(None, "operator_id", "device_id", "kind", "ordinal"),
        Index(None, "variant_id", "case_id", "device_id", "kind", "ordinal", "id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    kind: Mapped[str]
    commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    ordinal: Mapped[int]
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    variant_id: Mapped[int] = mapped_column(ForeignKey("variants.id", ondelete="CASCADE"))
    case_id: Mapped[int] = mapped_column(ForeignKey("cases.id", ondelete="CASCADE"), index=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    status: Mapped[str]
    message: Mapped[str] = mapped_column(server_default="")
    details: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    created_at: Mapped[datetime] = _created()


class Series(Base):
    """operator × case × variant × device × protocol × metric over commits."""

    __tablename__ = "series"
    __table_args__ = (
        UniqueConstraint("operator_id", "device_id", "case_id", "variant_id", "metric", "protocol"),
        Index(None, "device_id", "metric"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    case_id: Mapped[int] = mapped_column(ForeignKey("cases.id", ondelete="CASCADE"))
    variant_id: Mapped[int] = mapped_column(ForeignKey("variants.id", ondelete="CASCADE"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"))
    protocol: Mapped[str]
    metric: Mapped[str]


class Point(Base):
    """One series at one commit, as one run measured it."""

    __tablename__ = "points"
    __table_args__ = (
        UniqueConstraint("series_id", "result_id"),
        Index(None, "series_id", "ordinal", "id"),
        Index(None, "commit_id"),
        Index(None, "result_id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id", ondelete="CASCADE"))
    commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    ordinal: Mapped[int]
    """The commit's ordinal, repeated here so that a history is one index range."""
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    result_id: Mapped[int] = mapped_column(ForeignKey("results.id", ondelete="CASCADE"))
    median_ns: Mapped[float]
    low_ns: Mapped[float]
    high_ns: Mapped[float]
    noise: Mapped[float]
    count: Mapped[int]
    dropped: Mapped[int] = mapped_column(server_default="0")
    roofline_share: Mapped[float | None]
    """Lower bound from the measured ceilings over the median; `bound` says which ceiling binds."""
    bound: Mapped[str | None]
    measured_at: Mapped[datetime] = _created()


class Samples(Base):
    """Every kept sample of a point: float32 nanoseconds, little endian, zlib."""

    __tablename__ = "samples"
    point_id: Mapped[int] = mapped_column(ForeignKey("points.id", ondelete="CASCADE"), primary_key=True)
    data: Mapped[bytes]


class Trace(Base):
    """A Chrome trace, gzip'ed, in chunks. Not listed before it is `complete`."""

    __tablename__ = "traces"
    id: Mapped[int] = mapped_column(primary_key=True)
    result_id: Mapped[int] = mapped_column(ForeignKey("results.id", ondelete="CASCADE"), index=True)
    size: Mapped[int]
    compressed_size: Mapped[int]
    sha256: Mapped[str]
    runtime_calls: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    created_at: Mapped[datetime] = _created()


class TraceChunk(Base):
    __tablename__ = "trace_chunks"
    trace_id: Mapped[int] = mapped_column(ForeignKey("traces.id", ondelete="CASCADE"), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]


class TraceKernel(Base):
    __tablename__ = "trace_kernels"
    __table_args__ = (Index(None, "trace_id", "total_ns"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    trace_id: Mapped[int] = mapped_column(ForeignKey("traces.id", ondelete="CASCADE"))
    name: Mapped[str]
    calls: Mapped[int]
    total_ns: Mapped[float]
    mean_ns: Mapped[float]
    share: Mapped[float]
    details: Mapped[dict[str, Any]] = mapped_column(server_default="{}")


class Build(Base):
    """One build of one operator's library for a commit: how long it took and what the compiler made of it."""

    __tablename__ = "builds"
    __table_args__ = (UniqueConstraint("commit_id", "operator_id", "environment_id"), Index(None, "operator_id"))
    id: Mapped[int] = mapped_column(primary_key=True)
    commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    status: Mapped[str]
    key: Mapped[str]
    cached: Mapped[bool]
    seconds: Mapped[float]
    log: Mapped[str]
    resources: Mapped[list[Any]]


class Bundle(Base):
    """A results file that was imported; its digest makes a second import a no-op."""

    __tablename__ = "bundles"
    id: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    submission_id: Mapped[int] = mapped_column(ForeignKey("submissions.id", ondelete="CASCADE"))
    imported_at: Mapped[datetime] = _created()


# --- verdicts -------------------------------------------------------------------------------------------------


class Comparison(Base):
    """Paired rounds of two commits measured in turn on one device. ratio is head over base, with its 95 % interval."""

    __tablename__ = "comparisons"
    __table_args__ = (UniqueConstraint("run_id", "series_id"), Index(None, "series_id"))
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id", ondelete="CASCADE"))
    base_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    head_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    status: Mapped[str]
    message: Mapped[str] = mapped_column(server_default="")
    base_ns: Mapped[list[Any]]
    """Median of each round; base_ns[i] and head_ns[i] were taken beside each other."""
    head_ns: Mapped[list[Any]]


class Regression(Base):
    """A change of one operator on one device between two commits, slower or faster, with every series that shows it."""

    __tablename__ = "regressions"
    __table_args__ = (
        _one_of("verdict", Verdict),
        _one_of("state", Triage),
        UniqueConstraint("operator_id", "device_id", "base_commit_id", "head_commit_id", "direction"),
        Index(None, "verdict", "state", "id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"))
    base_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    head_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    direction: Mapped[str]
    """slower | faster."""
    verdict: Mapped[str] = mapped_column(server_default=Verdict.SUSPECTED)
    state: Mapped[str] = mapped_column(server_default=Triage.NEW)
    ratio: Mapped[float]
    """Head over base of its worst series; measured in turn once confirmed, from history before."""
    low: Mapped[float | None]
    high: Mapped[float | None]
    compare_job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"), index=True)
    base_trace_id: Mapped[int | None] = mapped_column(ForeignKey("traces.id", ondelete="SET NULL"))
    head_trace_id: Mapped[int | None] = mapped_column(ForeignKey("traces.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = _created()
    decided_at: Mapped[datetime | None]


class RegressionSeries(Base):
    __tablename__ = "regression_series"
    regression_id: Mapped[int] = mapped_column(ForeignKey("regressions.id", ondelete="CASCADE"), primary_key=True)
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id", ondelete="CASCADE"), primary_key=True, index=True)
    suspected_ratio: Mapped[float]
    verdict: Mapped[str] = mapped_column(server_default=Verdict.SUSPECTED)
    ratio: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]


class RegressionNote(Base):
    __tablename__ = "regression_notes"
    __table_args__ = (Index(None, "regression_id", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    regression_id: Mapped[int] = mapped_column(ForeignKey("regressions.id", ondelete="CASCADE"))
    author: Mapped[str]
    state: Mapped[str]
    note: Mapped[str]
    created_at: Mapped[datetime] = _created()
