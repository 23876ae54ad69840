"""What was asked for: submissions, jobs, runs, results, logs, traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from warpwatch.db.reads.rows.timings import MeasuredSeries


@dataclass(frozen=True, slots=True)
class SubmissionRow:
    """state: queued | running | done | failed | cancelled, drawn from its jobs. counts: jobs per state."""

    id: int
    repository: str
    origin: str
    request: dict[str, Any]
    state: str
    counts: dict[str, int]
    results: dict[str, int]
    """Results per status, over all its runs that count."""
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobRow:
    """position: how many jobs of its device come before it; None unless queued."""

    id: int
    submission_id: int
    kind: str
    commit_sha: str
    commit_subject: str
    base_sha: str | None
    operator: str
    device_key: str
    state: str
    attempt: int
    priority: int
    message: str
    progress: dict[str, Any] | None
    position: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunRow:
    id: int
    attempt: int
    worker: str | None
    state: str
    message: str
    started_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class ResultView:
    id: int
    variant: str
    case: str
    kind: str
    status: str
    message: str
    details: dict[str, Any]
    median_ns: float | None
    trace_id: int | None
    measured: list[MeasuredSeries] = field(default_factory=list)
    """Every metric of a bench, in the order they were taken."""
    replay: str = ""
    """A command that does it again in a checkout, without a server; empty for what a comparison found."""


@dataclass(frozen=True, slots=True)
class JobDetail:
    job: JobRow
    repository: str
    spec: dict[str, Any]
    """As the API shows it: contract.spec.JobSpec.to_stored."""
    runs: list[RunRow]
    results: list[ResultView]
    replay: str


@dataclass(frozen=True, slots=True)
class LogLine:
    id: int
    text: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class KernelView:
    name: str
    calls: int
    total_ns: float
    mean_ns: float
    share: float
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TraceDetail:
    id: int
    repository: str
    operator: str
    variant: str
    case: str
    commit_sha: str
    device_key: str
    size: int
    compressed_size: int
    sha256: str
    runtime_calls: dict[str, float]
    created_at: datetime
    kernels: list[KernelView]
    summary: dict[str, Any] = field(default_factory=dict)
    """What else was read from it (worker/harness/profile_summary.py); empty for traces of earlier versions."""
    has_report: bool = False
    """Whether Nsight Compute's file is there."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A trace that another can be compared with."""

    id: int
    variant: str
    case: str
    commit_sha: str
    commit_subject: str
    created_at: datetime
