"""What is measured once beside the metrics: what an empty call takes, what a variant prepares, how many instructions it needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Cost, Operator, Variant, case

from ..protocol import METRICS, SETUP, Counter, Measurement
from . import timer_cpu, timer_cuda, timer_kernel
from .instructions import NotCountedError, count_calls
from .problem import Problem
from .rotation import Rotation
from .summary import summarize

_EMPTY_BUDGET_NS = 5_000_000
_SETUP_SAMPLES = 10
_FEWEST_SETUPS = 3
_SETUP_SEEDS = 104_729


@cache
def empty_ns(device: torch.device) -> dict[str, float]:
    """Nanoseconds that a call which does nothing (on a GPU: launches an empty kernel) takes by each metric of the device.

    Told beside the values and never taken off them: how much of it hides behind real work depends on the work.
    """
    problem = Problem(_EMPTY, _EMPTY.variants[device.type], _EMPTY.all_cases()[0], device)
    found = {}
    with problem.modes():
        for metric in METRICS[device.type]:
            timer = open_timer(problem, 0, metric, _EMPTY_BUDGET_NS, 1)
            timer.take()
            found[metric] = median(timer.take())
    return found


def measure_setup(problem: Problem, seed: int, budget_ns: int) -> Measurement | None:
    """What the variant prepares, timed on new numbers each time, until the device is done; None when it prepares nothing."""
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
    return summarize(SETUP, samples)


def count(problem: Problem, seed: int) -> tuple[dict[str, Counter], str]:
    """(instructions of a call on a CPU, a note on why there are none)."""
    if problem.device.type != "cpu":
        return {}, ""
    calls: list[Callable[[], Any]] = Rotation(problem, seed, 2).calls
    try:
        return {"instructions": count_calls(calls)}, ""
    except NotCountedError as error:
        return {}, f"no instruction counts: {error}"


def open_timer(
    problem: Problem, seed: int, metric: str, budget_ns: int, placements: int
) -> timer_cpu.HotTimer | timer_cuda.GraphTimer | timer_cuda.ColdTimer | timer_kernel.KernelTimer:
    """A warmed-up timer for one metric of the device; CaptureError when the variant cannot be put into a graph that it needs."""
    if metric == "kernel":
        return timer_kernel.KernelTimer(problem, seed)
    if problem.device.type == "cuda":
        return timer_cuda.open_timer(problem, seed, metric, placements)
    return timer_cpu.open_timer(problem, seed, metric, budget_ns)


def _nothing(x: Tensor) -> Tensor:
    return x


def _launch(x: Tensor) -> Tensor:
    timer_cuda.sleep(0)
    return x


_EMPTY = Operator(
    "empty",
    "Does nothing.",
    inputs=lambda case, make: {"x": make.normal(case["n"])},
    reference=lambda x: x,
    cost=lambda case: Cost(0, 0),
    cases={"quick": (case(n=1),)},
    variants={"cpu": Variant("cpu", _nothing, "nothing"), "cuda": Variant("cuda", _launch, "an empty kernel")},
)
