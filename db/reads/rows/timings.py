"""What was measured: cells, histories, commits, comparisons of two columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from warpwatch.db.reads.rows.builds import BuildView
from warpwatch.db.reads.rows.code import CommitRow, UnchangedRow


@dataclass(frozen=True, slots=True)
class OverviewCell:
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
    distribution: dict[str, Any] | None = None
    """contract.measurement.Distribution as JSON: drift, modes, autocorrelation, outliers, effective; None where it was not
    told."""


@dataclass(frozen=True, slots=True)
class MeasuredSeries:
    """One metric of one result. distribution: see PointRow."""

    point_id: int
    series_id: int
    metric: str
    median_ns: float
    low_ns: float
    high_ns: float
    noise: float
    count: int
    dropped: int
    roofline_share: float | None
    bound: str | None
    distribution: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PointSamples:
    """Every kept sample of one point, in the order they were taken, one call each. distribution: see PointRow."""

    id: int
    series_id: int
    commit_sha: str
    median_ns: float
    low_ns: float
    high_ns: float
    dropped: int
    samples_ns: list[float]
    distribution: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StatusMark:
    """A commit of a history where check or bench ended in another status than ok."""

    commit_sha: str
    ordinal: int
    kind: str
    status: str
    message: str


@dataclass(frozen=True, slots=True)
class ReadingRow:
    """What one run measured in one series.

    Unlike points of a history, all runs of a commit count: repeats teach the noise.
    """

    commit_sha: str
    commit_id: int
    ordinal: int
    environment_id: int
    device_kind: str
    median_ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True, slots=True)
class SeriesHistory:
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
    replay: str = ""
    """A command that checks it again in a checkout, or times it where that is what went wrong, without a server."""


@dataclass(frozen=True, slots=True)
class CommitDetail:
    commit: CommitRow
    repository: str
    cells: list[CommitCell]
    builds: list[BuildView]
    unchanged: list[UnchangedRow]


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
    left_trace_id: int | None = None
    right_trace_id: int | None = None
