"""What reading returns. Durations are nanoseconds, sizes bytes, times UTC; a `change` is new over old, 1.0 meaning no change."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list, newest first; `next_before` is the cursor of the following page, None on the last."""

    items: list[Item]
    next_before: int | None


@dataclass(frozen=True, slots=True)
class RepositoryRow:
    id: int
    name: str
    url: str
    commits: int


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """workers: how many are alive now. queued, running: jobs waiting for it and under way on it."""

    id: int
    key: str
    kind: str
    name: str
    workers: int
    queued: int
    running: int
    environments: int


@dataclass(frozen=True, slots=True)
class WorkerRow:
    id: int
    name: str
    device_key: str
    version: str
    started_at: datetime
    heartbeat_at: datetime
    state: str
    """alive | silent | stopped."""
    job_id: int | None


@dataclass(frozen=True, slots=True)
class EnvironmentView:
    id: int
    key: str
    device_key: str
    facts: dict[str, Any]
    peaks: dict[str, float] | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class CommitRow:
    """points, wrong, broken: how many were measured, wrong, and ended in another status than ok, wrong, unsupported or skipped."""

    id: int
    sha: str
    parent_sha: str | None
    ordinal: int
    author: str
    authored_at: datetime
    subject: str
    points: int = 0
    wrong: int = 0
    broken: int = 0


@dataclass(frozen=True, slots=True)
class OperatorRow:
    id: int
    name: str
    summary: str
    variants: list[str]
    cases: list[str]


@dataclass(frozen=True, slots=True)
class CaseRow:
    id: int
    key: str
    sizes: dict[str, Any]
    precision: str
    direction: str
    layout: str
    suites: list[str]
    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Cell:
    """The newest state of one variant on one case on one device.

    Timing fields are None where it was never measured; `change` is against the previous measured commit of the same
    environment-free series. check_status and bench_status are the newest results' statuses, None where there is none.
    """

    operator: str
    case: str
    variant: str
    series_id: int | None
    commit_sha: str | None
    median_ns: float | None
    noise: float | None
    roofline_share: float | None
    gflops: float | None
    gbs: float | None
    previous_ns: float | None
    previous_sha: str | None
    change: float | None
    check_status: str | None
    check_message: str
    bench_status: str | None
    bench_message: str
    regression_id: int | None


@dataclass(frozen=True, slots=True)
class SeriesRow:
    id: int
    repository: str
    operator: str
    case: str
    variant: str
    device_key: str
    device_name: str
    metric: str
    protocol: str
    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PointRow:
    """One point of a history, with what the tooltip shows."""

    id: int
    commit_sha: str
    ordinal: int
    subject: str
    author: str
    authored_at: datetime
    environment_id: int
    median_ns: float
    low_ns: float
    high_ns: float
    noise: float
    count: int
    roofline_share: float | None
    bound: str | None
    result_id: int


@dataclass(frozen=True, slots=True)
class PointSamples:
    """Every kept sample of one point, in the order they were taken, one call each."""

    id: int
    series_id: int
    commit_sha: str
    median_ns: float
    low_ns: float
    high_ns: float
    dropped: int
    samples_ns: list[float]


@dataclass(frozen=True, slots=True)
class StatusMark:
    """A commit of a history where check or bench ended in another status than ok."""

    commit_sha: str
    ordinal: int
    kind: str
    status: str
    message: str


@dataclass(frozen=True, slots=True)
class History:
    series: SeriesRow
    points: list[PointRow]
    marks: list[StatusMark]
    environments: dict[int, dict[str, Any]]
    """Environment id to facts."""


@dataclass(frozen=True, slots=True)
class CommitCell:
    """One variant on one case on one device at one commit: right or wrong, time, change, trace."""

    operator: str
    case: str
    variant: str
    device_key: str
    check_status: str | None
    check_message: str
    check_result_id: int | None
    bench_status: str | None
    bench_message: str
    bench_result_id: int | None
    profile_status: str | None
    series_id: int | None
    median_ns: float | None
    low_ns: float | None
    high_ns: float | None
    change: float | None
    trace_id: int | None


@dataclass(frozen=True, slots=True)
class BuildView:
    operator: str
    status: str
    cached: bool
    seconds: float
    log: str
    resources: list[Any]


@dataclass(frozen=True, slots=True)
class CommitDetail:
    commit: CommitRow
    repository: str
    cells: list[CommitCell]
    builds: list[BuildView]


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """Left and right may be two commits of one variant or two variants of one commit; ratio is right over left."""

    operator: str
    case: str
    left_variant: str
    right_variant: str
    left_status: str | None
    right_status: str | None
    left_ns: float | None
    right_ns: float | None
    ratio: float | None
    separated: bool
    """True when the two 95 % intervals do not touch."""
    left_series_id: int | None
    right_series_id: int | None


@dataclass(frozen=True, slots=True)
class RegressionRow:
    id: int
    operator: str
    device_key: str
    direction: str
    verdict: str
    state: str
    ratio: float
    low: float | None
    high: float | None
    base_sha: str
    head_sha: str
    head_subject: str
    head_author: str
    commits_between: int
    series: int
    created_at: datetime
    decided_at: datetime | None


@dataclass(frozen=True, slots=True)
class RegressionSeriesRow:
    """base_ns, head_ns: the paired rounds of the comparison that decided it."""

    series_id: int
    case: str
    variant: str
    metric: str
    verdict: str
    suspected_ratio: float
    ratio: float | None
    low: float | None
    high: float | None
    base_ns: list[float] = field(default_factory=list)
    head_ns: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NoteRow:
    author: str
    state: str
    note: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class RegressionDetail:
    regression: RegressionRow
    repository: str
    series: list[RegressionSeriesRow]
    notes: list[NoteRow]
    compare_job_id: int | None
    base_trace_id: int | None
    head_trace_id: int | None
    replay: str
    """A command that measures the two commits beside each other again."""


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


@dataclass(frozen=True, slots=True)
class JobDetail:
    job: JobRow
    repository: str
    spec: dict[str, Any]
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


@dataclass(frozen=True, slots=True)
class HealthRow:
    """queued, running: jobs. workers: how many are alive."""

    queued: int
    running: int
    workers: int
    repositories: int
    database_bytes: int


@dataclass(frozen=True, slots=True)
class PulseRow:
    """What a page follows while a job runs. run_id is its newest attempt's, None before the first."""

    job_id: int
    state: str
    attempt: int
    message: str
    progress: dict[str, Any] | None
    position: int | None
    run_id: int | None


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What history and comparisons say of a submission's commits.

    pending: how many of its jobs are not judged yet, plus how many suspicions wait for their comparison.
    regressions: confirmed changes, slower or faster, that begin at one of its commits.
    """

    pending: int
    regressions: list[RegressionRow]
