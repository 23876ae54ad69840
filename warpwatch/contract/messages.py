"""Requests of the parent process to its child, and the replies, one JSON object per line.

The parent writes requests to the child's standard input. The child writes replies and events to a descriptor of its own
(its number is in WARPWATCH_REPLY_FD), so anything that kernel code prints goes to the log. Every request gets one reply
with the same `id`; events may come before it: `"event": "progress"`, and `"event": "turn"`, which names a LaneUse in
`"use"`. The parent answers the latter with the verb `turn` once the device may be used so.

Durations are nanoseconds, sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from warpwatch.contract.catalogue import CaseEntry
from warpwatch.contract.measurement import (
    BatchRows,
    Counter,
    Curves,
    LaunchedCode,
    Measurement,
    Probe,
    TensorError,
    TraceKernel,
    expect_times,
)
from warpwatch.contract.spec import BUDGET_NS, USUAL_PLAN, ProfilePlan
from warpwatch.contract.words import Fault, Status

PING = "ping"
"""The verb that shows that the child has answered all earlier requests."""
TURN = "turn"
"""The verb that grants a child the use of the device that it asked for while it serves a request."""


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """How a GPU timer goes through its input sets: CUDA graphs in so many memory placements, each with so many sets and
    launches, and so many replays in a slice. Both sides of a comparison follow one plan, whatever their times are.

    calls: eager calls of `launch` in a row, each on a set of its own; 0 where a call takes the device too long to wait
    for. metric: the device's time that the plan is for. Where that is `kernel`, no graph captures the variant, and
    launches are eager calls in one session of the profiler.
    """

    sets: int
    placements: int
    launches: int
    replays: int
    calls: int = 1
    metric: str = "graph"

    def __post_init__(self) -> None:
        """ValueError, naming the field, for a number that no timer can use."""
        for name, least in (("sets", 1), ("placements", 1), ("launches", 1), ("replays", 1), ("calls", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}, got {getattr(self, name)}")

    def __and__(self, other: GraphPlan) -> GraphPlan:
        """The largest plan that fits two sides that would have planned so, in whichever order; ValueError for plans of
        two metrics."""
        if self.metric != other.metric:
            raise ValueError(f"metric: expected {self.metric}, got {other.metric}")
        sets = min(self.sets, other.sets)
        return GraphPlan(
            sets,
            min(self.placements, other.placements),
            sets * max(1, min(self.launches, other.launches) // sets),
            min(self.replays, other.replays),
            min(self.calls, other.calls),
            self.metric,
        )


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    verb: catalogue | cases | check | bench | profile | rehearse | plan | prepare | sample | testify | finish | ceilings
    | bounds | canary | environment. A child that builds knows key | build instead. Both answer `ping` with an empty
    reply. `prepare`/`sample`/`finish` measure the same thing as `bench` in slices that the parent interleaves across
    children. A `sample` is one slice of about 10 ms on a GPU and 40 ms on a CPU (one call, where a call takes longer),
    or of budget_ns / rounds where that is shorter; rounds is how many slices are planned. On a GPU a slice of `launch`
    follows. `testify` is the part of `finish` that needs a device of its own, and which `finish` makes up for where
    nobody asked for it. `rehearse` measures the reference and forgets it, so that the first `prepare` and `finish` of a
    child do not wait for what is loaded late.
    wait, launch_wait: with `sample`, a share of the time of the slice before, by which every call is made longer: on
    the device, and on the host in the slice of `launch`. core: with `sample`, the number of the core on which the calls
    of `launch` run; by default the one on which they begin.
    `plan` plans what `prepare` measures on a GPU; sides: how many children prepare it at the same time and share the
    memory. plan: with `prepare`, the plan to follow, so that nothing has to be timed for it, and another child may
    prepare at the same time. metrics: with `prepare`, those of contract.measurement.JUDGED to measure, none for all;
    with `plan`, `kernel` where no graph may be planned. `output` is the path a profile's trace (gzip'ed Chrome JSON) is
    written to.
    energy: with `profile`, whether the energy of a call is measured as well.
    `cases` are the keys that the verb of this name describes. `modules` are those whose versions are part of an
    environment. lanes: how many children of the job, this one included, use the device at the same time; with more than
    one it asks for turns. A child that runs a program knows `run` instead, with its `command` for the shell.
    """

    id: int
    verb: str
    operator: str | None = None
    variant: str | None = None
    case: str | None = None
    seed: int = 0
    budget_ns: int = BUDGET_NS
    rounds: int = 1
    output: str | None = None
    profile: ProfilePlan = USUAL_PLAN
    cases: list[str] = field(default_factory=list)
    command: str = ""
    modules: list[str] = field(default_factory=list)
    wait: float = 0.0
    plan: GraphPlan | None = None
    lanes: int = 1
    energy: bool = False
    launch_wait: float = 0.0
    core: int | None = None
    sides: int = 1
    metrics: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CasesReply:
    """The undeclared cases of `Request.cases` that the operator can have."""

    status: Status
    message: str = ""
    cases: list[CaseEntry] = field(default_factory=list)


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
class CheckReply:
    """status is wrong when a plain run or any probe is; fault then says what is wrong, and with which subjects.

    curves: what the operator draws of a right result; None where it draws nothing. moving: results of which bits differ
    between two calls on the same inputs; differing: how many of their elements do, None where two calls were not
    compared. batch: whether rows depend on the rows beside them. counters: "first_call" and "load", as in BenchReply.
    launched: what a call launches; None where nothing can tell.
    """

    status: Status
    message: str = ""
    seed: int = 0
    tensors: list[TensorError] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    fault: Fault | None = None
    subjects: list[str] = field(default_factory=list)
    curves: Curves | None = None
    moving: list[str] = field(default_factory=list)
    differing: int | None = None
    batch: BatchRows | None = None
    counters: dict[str, Counter] = field(default_factory=dict)
    launched: LaunchedCode | None = None


@dataclass(frozen=True, slots=True)
class BenchReply:
    """flops and bytes are the case's cost.

    health: "before", "after" (clocks, temperature, power and throttle reasons, or the load of a CPU), "empty_ns" (what
    a call that does nothing takes by each metric), "notes" (what could not be measured, and why). counters:
    "instructions" of a CPU, where the machine counts them; "cycles" of a GPU and its "clock" meanwhile; "memory", the
    bytes that torch allocates at most at once for a call, and "kept", those that a forward pass with gradients keeps
    until the backward pass; with a large budget "energy", the joules of a call on a GPU that counts them, and its
    "power" meanwhile; at the first use of a variant in a process "load", the seconds until its operator's file and
    library are loaded, and beside other children "first_call", the seconds of the call, where no compiler found what an
    earlier process had compiled. A variant that prepares has one more metric, `setup`. fault, subjects: as in
    CheckReply.
    """

    status: Status
    message: str = ""
    flops: int = 0
    bytes: int = 0
    measurements: list[Measurement] = field(default_factory=list)
    health: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, Counter] = field(default_factory=dict)
    fault: Fault | None = None
    subjects: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SampleReply:
    """One slice of an interleaved measurement: samples of the device's time, and of `launch` on a GPU.

    metric: what samples_ns are of; not the device kind's first metric where a variant cannot be captured in a CUDA
    graph, and only samples of one metric can be compared. launch_ns: none where a call waits for the device, see
    no_launch. plan: of `plan`. times_itself: of `plan`, whether every `prepare` times something, `prepare` of a variant
    or configurations of kernels, for which no other child may prepare at the same time. no_launch: of `prepare`, why
    there is no `launch`. core: the number of the core on which the calls of `launch` ran. prepare_ns: the time of
    `prepare`, measured apart, that every sample holds beside its call.
    """

    status: Status
    message: str = ""
    samples_ns: list[float] = field(default_factory=list)
    metric: str = ""
    plan: GraphPlan | None = None
    launch_ns: list[float] = field(default_factory=list)
    times_itself: bool = False
    no_launch: str = ""
    core: int | None = None
    prepare_ns: float = 0.0

    def __post_init__(self) -> None:
        """ValueError for times that no device can show."""
        expect_times(self.samples_ns, "samples_ns")
        expect_times(self.launch_ns, "launch_ns")


@dataclass(frozen=True, slots=True)
class ProfileReply:
    """path: the gzip'ed Chrome trace.

    size: its uncompressed length. runtime_calls: CUDA runtime call name to count per step.

    summary: what else the trace says, as worker/harness/profile/summary.py lays it out. report: Nsight Compute's file
    in base64. counters: "energy" and "power", as in BenchReply.
    """

    status: Status
    message: str = ""
    path: str | None = None
    size: int = 0
    kernels: list[TraceKernel] = field(default_factory=list)
    runtime_calls: dict[str, float] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    report: str | None = None
    counters: dict[str, Counter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProgramReply:
    """How one command of a program ended. exit_code: negative where a signal ended it.

    has_output: whether it wrote the file of results; else its results are what it printed.
    """

    status: Status
    message: str = ""
    exit_code: int = 0
    seconds: float = 0.0
    has_output: bool = False


@dataclass(frozen=True, slots=True)
class CeilingsReply:
    """Measured peaks of the device: "copy" in bytes per second; "f32", "tf32", "bf16", "f64" in FLOP per second.

    `bounds` answers the same of a CPU, as rates that no call exceeds by far, whatever runs beside them.
    """

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
