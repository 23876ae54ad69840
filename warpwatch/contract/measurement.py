"""Timings, counters and errors of one variant on one case, and how close a time comes to the device's ceilings.
Durations are nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

from warpwatch.contract.words import BatchState

PROTOCOLS = {"cpu": "1", "cuda": "3"}
"""Version of how timings are taken, per kind of device; part of a series' key, so the timings of two versions are never
one series."""
LAUNCH = "launch"
"""Metric of the host's time for a call, from entering the variant until it returns."""
METRICS = {"cuda": ("graph", "kernel", "cold", "hot", "call", LAUNCH), "cpu": ("hot", "cold")}
"""Metrics per kind of device, all in nanoseconds. The first is the default of pages and tables; JUDGED names those that
get verdicts."""
JUDGED = {"cuda": ("graph", LAUNCH), "cpu": ("hot",)}
"""Metrics that get verdicts, per kind of device. The first is the device's time; `kernel` replaces it where a variant
cannot be captured in a CUDA graph."""
DEVICE_TIMES = ("graph", "kernel", "cold", "hot")
"""Metrics of a GPU that hold nothing but the device's time."""
SETUP = "setup"
"""Metric of what a variant does once per set of inputs before it is called; only variants that prepare have it."""
NO_CEILING = (SETUP, LAUNCH)
"""Metrics that hold no work of a call on the device, so that none of its ceilings bounds them."""
MOST_PLACES, MOST_LINES, LONGEST_LABEL = 1000, 12, 60
"""Of a result's curves."""
SHORTEST_NS, LONGEST_NS = 0.001, 86_400e9
"""A picosecond and a day: no call is shorter or longer."""
MOST_LAUNCHED = 64
"""Kernels, and choices of autotuners, that are listed of one call."""
_PEAK_OF = {"f16": "bf16"}
"""Precisions whose ceiling is measured under another name."""


def is_reported(protocol: str) -> bool:
    """Whether a program reports the times of a protocol. Those that the harness takes are numbered."""
    return bool(protocol) and not protocol.isdigit()


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
class Curves:
    """Lines over a common axis that a variant's result contains, such as the accuracy of every round of a training.

    x, y: what the axes count. at: places on the horizontal axis, in the order in which the lines run through them.
    lines: a value for each place, by the name of the line.
    """

    x: str
    y: str
    at: list[float]
    lines: dict[str, list[float]]

    def __post_init__(self) -> None:
        """ValueError, naming the field, for what no chart can show: results come from untrusted processes."""
        if not 1 <= len(self.at) <= MOST_PLACES or not 1 <= len(self.lines) <= MOST_LINES:
            raise ValueError(f"at, lines: expected 1 to {MOST_PLACES} places and 1 to {MOST_LINES} lines")
        if any(len(values) != len(self.at) for values in self.lines.values()):
            raise ValueError("lines: expected a value for each place")
        if any(len(text) > LONGEST_LABEL for text in (self.x, self.y, *self.lines)):
            raise ValueError(f"x, y, lines: expected names of at most {LONGEST_LABEL} letters")


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
class BatchRows:
    """Rows of a batch that were run once more as a smaller batch of their own.

    rows: how many rows of results were compared. changed: of those, the rows whose bits differ from those in the whole
    batch. note: why there are none.
    """

    state: BatchState
    rows: int = 0
    changed: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class LaunchedKernel:
    """A kernel that a call launches `count` times with the same grid and block.

    name: as C++ writes it, at most 1,000 letters. code_hash: fingerprint of its machine code, "" where it is unknown.
    spill_bytes: its local memory per thread.
    """

    name: str
    code_hash: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    grid: list[int]
    block: list[int]
    count: int


@dataclass(frozen=True, slots=True)
class TunedCandidate:
    """A configuration of an autotuner, and what a call took with it when it was tried."""

    config: str
    ns: float


@dataclass(frozen=True, slots=True)
class TunedChoice:
    """What an autotuner chose for a kernel.

    candidates: the fastest configurations with their times, the chosen one first; empty where the times of this choice
    are not known. tried: so many configurations there are.
    """

    kernel: str
    config: str
    candidates: list[TunedCandidate]
    tried: int


@dataclass(frozen=True, slots=True)
class LaunchedCode:
    """What one call launches on a GPU, by CUPTI, and what autotuners chose for it.

    digest: fingerprint of all that the call did on the device: machine code, grids, blocks, shared memory, arguments
    without addresses, copies and fills, in their order, and the bits of the results. Equal digests mean equal work. ""
    where something of it is unknown.
    """

    kernels: list[LaunchedKernel]
    digest: str
    choices: list[TunedChoice] = field(default_factory=list)

    def __post_init__(self) -> None:
        """ValueError for what no harness records: kernel code runs in the process that does."""
        candidates = [item for choice in self.choices for item in choice.candidates]
        texts = [self.digest, *(kernel.name + kernel.code_hash for kernel in self.kernels)]
        texts += [choice.kernel + choice.config for choice in self.choices] + [item.config for item in candidates]
        if max(len(self.kernels), len(self.choices)) > MOST_LAUNCHED or any(len(text) > 2000 for text in texts):
            raise ValueError("what a call launches has more kernels or longer names than are recorded")
        if not all(0 < item.ns <= LONGEST_NS for item in candidates):
            raise ValueError("a candidate of an autotuner has a time that no device can show")


@dataclass(frozen=True, slots=True)
class Mode:
    """One of two speeds that samples fall into: its median, and its share of them."""

    ns: float
    share: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """Shape of a set of samples besides its median.

    drift: change from the first sample to the last over the median; drift_chance: how likely such a trend is in samples
    without a trend. modes: both modes of a bimodal set, the larger first, otherwise none. autocorrelation: of
    neighbours, by rank. outliers: share of samples far from every mode. effective: number of independent samples that
    would give the median as precisely.
    """

    drift: float
    drift_chance: float
    modes: list[Mode]
    autocorrelation: float
    outliers: float
    effective: float


def expect_times(values_ns: list[float], name: str) -> None:
    """ValueError, naming the field, unless all durations lie between SHORTEST_NS and LONGEST_NS."""
    for value in values_ns:
        if not SHORTEST_NS <= value <= LONGEST_NS:
            raise ValueError(f"{name}: expected durations between a picosecond and a day, got {value!r}")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One metric of one variant on one case.

    samples_ns: every kept sample, one call each, in the order they were taken. median_ns, low_ns, high_ns: median and
    its 95 % interval, which is as wide as that many dependent samples leave it. noise: interquartile range over median.
    dropped: samples not kept, `dropped_reason` says why. distribution: None for fewer than 20 samples. protocol: who
    took the time and how, one of PROTOCOLS or a name of warpwatch.formats.FORMATS.
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
    protocol: str = PROTOCOLS["cpu"]

    def __post_init__(self) -> None:
        """ValueError, naming the field, for times that no device can show: they come from untrusted processes."""
        if not self.samples_ns:
            raise ValueError("samples_ns: expected at least one sample")
        expect_times(self.samples_ns, "samples_ns")
        expect_times([self.low_ns, self.median_ns, self.high_ns], "low_ns, median_ns, high_ns")
        if not self.low_ns <= self.median_ns <= self.high_ns:
            raise ValueError("low_ns, median_ns, high_ns: expected ascending values")
        if not 0 <= self.noise < inf or self.dropped < 0:
            raise ValueError("noise, dropped: expected finite values of at least 0")


@dataclass(frozen=True, slots=True)
class Counter:
    """Something counted per call instead of timed: median with its 95 % interval, in `unit`, over `count` calls."""

    unit: str
    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class TraceKernel:
    """One row of a trace's kernel table; on the CPU the rows are torch operators. share is of the total time."""

    name: str
    calls: int
    total_ns: float
    mean_ns: float
    share: float
    details: dict[str, Any] = field(default_factory=dict)


def floors(flops: int, bytes_moved: int, precision: str | None, peaks: dict[str, float]) -> dict[str, float]:
    """Nanoseconds that moving the bytes ("copy") and doing the operations (the precision's name) take at the device's
    measured peaks (see CeilingsReply), those that are known."""
    peak = _PEAK_OF.get(precision or "", precision or "")
    work = {"copy": float(bytes_moved), peak: float(flops)}
    return {name: 1e9 * amount / peaks[name] for name, amount in work.items() if peaks.get(name, 0) > 0}


def roofline(
    flops: int, bytes_moved: int, median_ns: float, precision: str | None, peaks: dict[str, float]
) -> tuple[float | None, str | None]:
    """Share of the measured roofline, between 0 and about 1, and the name of the ceiling that binds; None, None where
    no ceiling is known.

    The least time of a case is the longer of its floors.
    """
    least = floors(flops, bytes_moved, precision, peaks)
    if not least or median_ns <= 0:
        return None, None
    bound = max(least, key=lambda name: least[name])
    return least[bound] / median_ns, bound
