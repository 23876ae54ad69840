"""What parent and child say to each other, one JSON object per line.

The parent writes requests to the child's standard input; the child writes replies and events to its own descriptor
(number in WARPWATCH_REPLY_FD), so that anything kernel code prints stays log. Every request gets exactly one reply with
the same `id`; events (`"event": "progress"`) may come before it. Durations are nanoseconds, sizes are bytes.

This module needs the standard library alone. It is imported by the parent and, relatively, by the harness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from warpwatch.contract.words import Status

PROTOCOL = "1"
"""Version of how timings are taken; part of the series key, so two protocols are never drawn as one line."""

METRICS = {"cuda": ("graph", "kernel", "cold", "hot", "call"), "cpu": ("hot", "cold")}
"""Metrics per device kind, all of them nanoseconds, the one that verdicts are made from first."""

SETUP = "setup"
"""Metric of what a variant does once per set of numbers before it is called; measured where a variant says that it
prepares."""


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """How a profile is taken: calls that are skipped, run to warm up and recorded, and how often that is repeated.

    The trace is that of the last repetition. counters: ask Nsight Compute for hardware counters as well.
    """

    wait: int = 1
    warm_up: int = 1
    active: int = 2
    repeat: int = 1
    counters: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    verb: catalogue | build | check | bench | profile | prepare | sample | finish | ceilings | canary | environment.
    `prepare`/`sample`/`finish` measure the same thing as `bench` in slices that the parent interleaves across children.
    A `sample` is one slice of at most 40 ms (one call, where a call takes longer), or of budget_ns / rounds where that
    is shorter; rounds is how many slices are planned. `output` is the path a profile's trace (gzip'ed Chrome JSON) is
    written to.
    """

    id: int
    verb: str
    operator: str | None = None
    variant: str | None = None
    case: str | None = None
    seed: int = 0
    budget_ns: int = 1_000_000_000
    rounds: int = 1
    output: str | None = None
    profile: ProfilePlan = ProfilePlan()


@dataclass(frozen=True, slots=True)
class CaseEntry:
    key: str
    sizes: dict[str, Any]
    precision: str
    direction: str
    layout: str
    suites: list[str]
    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class VariantEntry:
    name: str
    idea: str
    outcome: str
    devices: list[str]
    native: bool


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """One operator of a commit. `error` is set, and the lists are empty, when its file does not load."""

    name: str
    summary: str
    variants: list[VariantEntry]
    cases: list[CaseEntry]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Catalogue:
    contract: int
    operators: list[OperatorEntry]


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything besides the code that could change a number; `key` is the SHA-256 of `facts` as canonical JSON.

    facts: driver, CUDA, torch, compiler, Python, kernel, CPU model, thread count … as text or numbers.
    device_kind: cpu | cuda. device_name: "NVIDIA H100 80GB HBM3", "AMD EPYC, 2 cores".
    device_key: the same as a slug for URLs and queue names, "nvidia-h100-80gb-hbm3".
    """

    key: str
    device_kind: str
    device_key: str
    device_name: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class KernelResources:
    """Static facts of one compiled kernel, from the compiler's own report, and the fingerprint of its machine code.

    Code for the CPU has one entry per source file ("square.cpp", "x86-64") without registers. code_hash is "" where it
    is unknown.
    """

    name: str
    arch: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    code_bytes: int = 0
    code_hash: str = ""


@dataclass(frozen=True, slots=True)
class BuildReply:
    """status is ok, build_failed or skipped (the operator has no native sources).

    seconds: what this took; compile_seconds: what compilers and linker took when the library was built, which may have
    been before. code_hash: fingerprint of all machine code in the library, "" where it is unknown.
    """

    status: Status
    message: str = ""
    key: str = ""
    cached: bool = False
    seconds: float = 0.0
    log: str = ""
    resources: list[KernelResources] = field(default_factory=list)
    compile_seconds: float = 0.0
    code_hash: str = ""


@dataclass(frozen=True, slots=True)
class TensorError:
    """How one output or gradient differs from the float64 oracle.

    name: "y", "y[1]", "grad x". norm, oracle_norm: Frobenius norms. relative: ‖out − oracle‖ / ‖oracle‖. absolute:
    largest |out − oracle|, at worst_index. ulp: the same in units in the last place of the precision. torch_relative:
    relative error of the reference run by torch in the same precision; None where it cannot run. tolerance: what
    `relative` was held against. Errors that are infinite or NaN are given as the largest float, as JSON has neither.
    """

    name: str
    right: bool
    norm: float
    oracle_norm: float
    relative: float
    absolute: float
    ulp: float
    torch_relative: float | None
    tolerance: float
    worst_index: list[int]


@dataclass(frozen=True, slots=True)
class Probe:
    """One further question of a check, asked after the plain runs were right.

    name: "guard bands", "strided inputs", "offset inputs", "special values", "opcheck", "graph capture". status: ok |
    wrong | refuses (an error that names contiguity, alignment or strides: no wrong answer) | skipped (message says
    why).
    """

    name: str
    status: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class CheckReply:
    """status is wrong when a plain run or any probe is; message then begins with what found it."""

    status: Status
    message: str = ""
    seed: int = 0
    tensors: list[TensorError] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mode:
    """One of two speeds that samples fall into: its median, and its share of them."""

    ns: float
    share: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a set of samples looks like besides its median.

    drift: change from the first sample to the last over the median; drift_chance: how likely such a trend is where
    there is none. modes: both modes of a bimodal set, the larger first, else none. autocorrelation: of neighbours, by
    rank. outliers: share of samples far from every mode. effective: number of independent samples that would know the
    median as well.
    """

    drift: float
    drift_chance: float
    modes: list[Mode]
    autocorrelation: float
    outliers: float
    effective: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """One metric of one variant on one case.

    samples_ns: every kept sample, one call each, in the order they were taken. median_ns, low_ns, high_ns: median and
    its 95 % interval, which is as wide as that many dependent samples leave it. noise: interquartile range over median.
    dropped: samples not kept, `dropped_reason` says why. distribution: None for fewer than 20 samples.
    """

    metric: str
    samples_ns: list[float]
    median_ns: float
    low_ns: float
    high_ns: float
    noise: float
    dropped: int = 0
    dropped_reason: str = ""
    distribution: Distribution | None = None


@dataclass(frozen=True, slots=True)
class Counter:
    """Something counted per call instead of timed: median with its 95 % interval, in `unit`, over `count` calls."""

    unit: str
    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class BenchReply:
    """flops and bytes are the case's cost.

    health: "before", "after" (clocks, temperature, power and throttle reasons, or the load of a CPU), "empty_ns" (what
    a call that does nothing takes by each metric), "notes" (what could not be measured, and why). counters:
    "instructions" of a CPU, where the machine counts them; "cycles" of a GPU and its "clock" meanwhile. A variant that
    prepares has one more metric, `setup`.
    """

    status: Status
    message: str = ""
    flops: int = 0
    bytes: int = 0
    measurements: list[Measurement] = field(default_factory=list)
    health: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, Counter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SampleReply:
    """One slice of an interleaved measurement: the primary metric's samples of this round.

    metric: what was measured; not the device kind's first metric where a variant cannot be captured in a CUDA graph,
    and only samples of one metric can be compared.
    """

    status: Status
    message: str = ""
    samples_ns: list[float] = field(default_factory=list)
    metric: str = ""


@dataclass(frozen=True, slots=True)
class TraceKernel:
    """One row of a trace's kernel table; on the CPU the rows are torch operators. share is of the total time."""

    name: str
    calls: int
    total_ns: float
    mean_ns: float
    share: float
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProfileReply:
    """path: the gzip'ed Chrome trace.

    size: its uncompressed length. runtime_calls: CUDA runtime call name to count per step.

    summary: what else the trace says, as worker/harness/profile_summary.py lays it out. report: Nsight Compute's file
    in base64.
    """

    status: Status
    message: str = ""
    path: str | None = None
    size: int = 0
    kernels: list[TraceKernel] = field(default_factory=list)
    runtime_calls: dict[str, float] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    report: str | None = None


@dataclass(frozen=True, slots=True)
class CeilingsReply:
    """Measured peaks of the device: "copy" in bytes per second; "f32", "tf32", "bf16", "f64" in FLOP per second."""

    status: Status
    message: str = ""
    peaks: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CanaryReply:
    """Whether a device is fit to be measured on, as it is now and before anything is.

    troubles: what speaks against it (busy, held back, too hot); empty when nothing does. rates: short runs of what the
    ceilings are made of, by the same names and units. facts: what was looked at; "note" says what could not be.
    """

    status: Status
    message: str = ""
    troubles: list[str] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
