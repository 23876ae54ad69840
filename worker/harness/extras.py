"""Measures once per bench: the time of an empty call, the setup of a variant, and instruction or cycle counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from warpwatch.contract.activities import Activity
from warpwatch.contract.measurement import METRICS, PROTOCOLS, SETUP, Counter, Measurement
from warpwatch.contract.messages import GraphPlan
from warpwatch.operator import Cost, Operator, Variant, case

from . import device_time, timer_cpu, timer_cuda, timer_kernel
from .capture import NoMetricError
from .cycles import measure_cycles
from .energy import measure_energy
from .instructions import NotCountedError, count_calls
from .problem import CaseProblem
from .profiler import peak_bytes
from .rotation import Rotation
from .spent import STOPWATCH
from .summary import summarize

_EMPTY_BUDGET_NS = 5_000_000
_SETUP_SAMPLES = 10
_FEWEST_SETUPS = 3
_SETUP_SEEDS = 104_729
_LONGEST_RECORDED_NS = 100_000_000
"""Of a call whose memory is recorded: each allocation of a longer one, such as a training run, is an event."""


@STOPWATCH.measure(Activity.SAMPLES)
def empty_ns(device: torch.device) -> dict[str, float]:
    """Nanoseconds of a call without work (on a GPU: of an empty kernel) by each metric of the device.

    They are stored beside the results and not subtracted, because real work hides a part that depends on the work. The
    first metric is measured every time, because every kernel launch in a process on an H100 may become 0.3 µs slower
    at random; the others are measured once per process.
    """
    problem, timer, once = _empty_call(device)
    with problem.modes():
        return once | {METRICS[device.type][0]: median(timer.take())}


@cache
def _empty_call(device: torch.device) -> tuple[CaseProblem, Any, dict[str, float]]:
    """(a call without work, a warm timer of its first metric, its nanoseconds by each metric)."""
    problem = CaseProblem(_EMPTY, _EMPTY.variants[device.type], _EMPTY.all_cases()[0], device)
    with problem.modes():
        timers = {metric: open_timer(problem, 0, metric, _EMPTY_BUDGET_NS, 1) for metric in METRICS[device.type]}
        for timer in timers.values():
            timer.take()
        nanoseconds = {metric: median(timer.take()) for metric, timer in timers.items()}
        return problem, timers[METRICS[device.type][0]], nanoseconds


@STOPWATCH.measure(Activity.SAMPLES)
def measure_setup(problem: CaseProblem, seed: int, budget_ns: int) -> Measurement | None:
    """The time of the variant's `prepare` on new inputs each time, device work included; None without `prepare`."""
    if problem.variant.prepare is None:
        return None
    samples: list[float] = []
    end = perf_counter_ns() + budget_ns
    while len(samples) < _FEWEST_SETUPS or (len(samples) < _SETUP_SAMPLES and perf_counter_ns() < end):
        data = problem.data(seed + _SETUP_SEEDS * (len(samples) + 1))
        problem.synchronize()
        begin = perf_counter_ns()
        prepared = problem.prepared(data)
        problem.synchronize()
        samples.append(float(perf_counter_ns() - begin))
        del prepared
    return summarize(SETUP, samples, protocol=PROTOCOLS[problem.device.type])


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Counts per call, and notes on the counts that this machine cannot take."""

    counters: Mapping[str, Counter] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __or__(self, newer: CallCounts) -> CallCounts:
        """Both together; of what both count, the newer."""
        return CallCounts({**self.counters, **newer.counters}, self.notes + newer.notes)


def count_call(problem: CaseProblem, seed: int, call_ns: float | None, *, with_energy: bool) -> CallCounts:
    """Counts instructions, memory and perhaps energy. call_ns: how long a call takes, None where no metric was measured
    and only instructions are counted."""
    counts = count_instructions(problem, seed)
    if call_ns is not None:
        counts |= count_memory(problem, seed, call_ns)
        if with_energy:
            counts |= count_energy(problem, seed, call_ns)
    return counts


def count_instructions(problem: CaseProblem, seed: int) -> CallCounts:
    """The instructions of a call on a CPU; nothing on a GPU."""
    if problem.device.type != "cpu":
        return CallCounts()
    calls: list[Callable[[], Any]] = Rotation(problem, seed, 2).calls
    try:
        return CallCounts({"instructions": count_calls(calls)})
    except NotCountedError as error:
        return CallCounts(notes=(f"No instruction counts: {error}",))


def count_cycles(timer: timer_cuda.GraphTimer, device: torch.device) -> CallCounts:
    """The clock cycles of a call on a GPU and the actual clock meanwhile; timer: that of `graph`."""
    try:
        return CallCounts(measure_cycles(timer, device))
    except Exception as error:  # noqa: BLE001 - torch's interface to the driver is private; none may fail a bench.
        return CallCounts(notes=(f"No cycle counts: {type(error).__name__}: {error}",))


def count_memory(problem: CaseProblem, seed: int, call_ns: float) -> CallCounts:
    """The bytes that a call allocates at most at once, its results included; call_ns: how long it takes."""
    if call_ns > _LONGEST_RECORDED_NS:
        return CallCounts(notes=("No memory count: a call takes too long to record each allocation",))
    call = problem.call(problem.data(seed))
    call()
    most = float(peak_bytes(call, problem.device))
    return CallCounts({"memory": Counter("bytes", most, most, most, 1)})


def count_energy(problem: CaseProblem, seed: int, call_ns: float) -> CallCounts:
    """The joules of a call on a GPU, and the watts meanwhile; call_ns: how long a call takes."""
    if problem.device.type != "cuda":
        return CallCounts()
    try:
        return CallCounts(measure_energy(problem, seed, call_ns))
    except (NoMetricError, torch.OutOfMemoryError) as error:
        return CallCounts(notes=(f"No energy: {error}",))


@STOPWATCH.measure(Activity.WARM_UP)
def open_timer(
    problem: CaseProblem,
    seed: int,
    metric: str,
    budget_ns: int,
    placements: int,
    plan: GraphPlan | None = None,
    pace: timer_cuda.Pace = timer_cuda.USUAL,
) -> timer_cpu.CpuHotTimer | timer_cuda.GraphTimer | timer_cuda.CudaColdTimer | timer_kernel.KernelTimer:
    """A warmed-up timer for one metric of the device; CaptureError when a CUDA graph cannot capture the variant."""
    if metric == "kernel":
        return timer_kernel.KernelTimer(problem, seed)
    if problem.device.type == "cuda":
        return timer_cuda.open_timer(problem, seed, metric, placements, plan, pace)
    return timer_cpu.open_timer(problem, seed, metric, budget_ns)


def _launch_empty_kernel(x: Tensor) -> Tensor:
    device_time.sleep(0)
    return x


_EMPTY = Operator(
    "empty",
    "Does nothing.",
    inputs=lambda case, make: {"x": make.normal(case["n"])},
    reference=lambda x: x,
    cost=lambda case: Cost(0, 0),
    cases={"quick": (case(n=1),)},
    variants={
        "cpu": Variant("cpu", lambda x: x, "nothing"),
        "cuda": Variant("cuda", _launch_empty_kernel, "an empty kernel"),
    },
)
