"""What a worker hands over when a run ends.

Plain data: db imports none of our packages, so the worker translates its protocol into this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warpwatch.contract.words import Reason, Status


@dataclass(frozen=True, slots=True)
class EnvironmentRow:
    """Fingerprint of where it ran; see contract.protocol.Environment.

    peaks are the measured ceilings, where they were measured.
    """

    key: str
    device_kind: str
    device_key: str
    device_name: str
    facts: dict[str, Any]
    peaks: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class MeasurementRow:
    """One metric; durations in nanoseconds, roofline_share between 0 and about 1, bound is the name of the ceiling that
    binds."""

    metric: str
    protocol: str
    samples_ns: list[float]
    median_ns: float
    low_ns: float
    high_ns: float
    noise: float
    dropped: int = 0
    roofline_share: float | None = None
    bound: str | None = None


@dataclass(frozen=True, slots=True)
class KernelRow:
    name: str
    calls: int
    total_ns: float
    mean_ns: float
    share: float
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A gzip'ed Chrome trace on disk, stored in chunks with bounded memory. size is its uncompressed length in bytes.

    summary: see contract.protocol.ProfileReply. report: Nsight Compute's file.
    """

    path: Path
    size: int
    kernels: list[KernelRow]
    runtime_calls: dict[str, float]
    summary: dict[str, Any] = field(default_factory=dict)
    report: bytes | None = None


@dataclass(frozen=True, slots=True)
class ResultRow:
    """How one variant fared on one case. Every status may come with measurements or a trace, usually only ok does."""

    variant: str
    case: str
    status: Status
    message: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    measurements: list[MeasurementRow] = field(default_factory=list)
    trace: TraceRow | None = None


@dataclass(frozen=True, slots=True)
class BuildRow:
    """See contract.protocol.BuildReply."""

    status: str
    key: str
    cached: bool
    seconds: float
    log: str
    resources: list[dict[str, Any]]
    compile_seconds: float | None = None
    code_hash: str = ""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """Paired rounds of one variant on one case at two commits; base_ns[i] was taken beside head_ns[i]."""

    variant: str
    case: str
    metric: str
    protocol: str
    status: Status
    message: str
    base_ns: list[float]
    head_ns: list[float]
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Everything one run found.

    catalogue is contract.protocol.Catalogue as JSON; variants and cases it names are created as needed.

    results and builds belong to the job's commit; base_results (traces of a compare job) to its base commit.
    """

    environment: EnvironmentRow
    catalogue: dict[str, Any] | None = None
    build: BuildRow | None = None
    results: list[ResultRow] = field(default_factory=list)
    base_catalogue: dict[str, Any] | None = None
    base_results: list[ResultRow] = field(default_factory=list)
    comparisons: list[ComparisonRow] = field(default_factory=list)
