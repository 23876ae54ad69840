"""Benches one variant on one case: every metric of the device kind, sampled until the median is known or the budget is
spent."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

from warpwatch.contract.measurement import METRICS, Measurement
from warpwatch.contract.messages import BenchReply, SampleReply
from warpwatch.contract.words import Status

from .anticheat import expect_honest
from .extras import CallCounters, empty_ns, measure_setup, open_timer
from .health import DeviceHealth
from .integrity import TamperGuard, watch
from .problem import CaseProblem
from .rotation import no_collection
from .summary import FEWEST, is_narrow, summarize
from .timer_cuda import CaptureError, GraphTimer, NoMetricError

SHARES = {
    "cuda": {"graph": 0.15, "kernel": 0.05, "cold": 0.05, "hot": 0.05, "call": 0.05},
    "cpu": {"hot": 0.6, "cold": 0.4},
}
"""Parts of the budget.

With one second a GPU's first metric gets what triton's do_bench takes, 25 ms to warm up and 100 ms.
"""
_SETUP_SHARE = 0.1
PLACEMENTS = 6
"""Memory placements on a GPU; small kernels differ between them by more than their samples do within one."""
_MOST_SAMPLES = 2000
_SHORTEST = 0.2
"""Part of a metric's budget that is used in any case: samples of one instant agree with each other more than with the
next."""
_LONGEST = 10
"""Times its budget that a metric may take to get its ten samples."""
_SLICE_NS = 40_000_000

Progress = Callable[[int, int, str], None]


class Timer(Protocol):
    """Takes slices of samples in nanoseconds per call.

    After `placements` slices every memory placement had its turn.
    """

    placements: int

    def take(self) -> list[float]: ...
    def verify(self) -> None: ...


def bench(problem: CaseProblem, seed: int, budget_ns: int, seal: TamperGuard, progress: Progress) -> BenchReply:
    """Every metric measured, and what was computed meanwhile verified: a wrong result raises WrongResultError."""
    cost = problem.operator.cost(problem.case)
    health = DeviceHealth(problem.device)
    facts: dict[str, Any] = {"empty_ns": empty_ns(problem.device), "before": health.read()}
    measurements, notes, counted = [], [], CallCounters()
    shares = SHARES[problem.device.type]
    with problem.modes(), watch(seal), no_collection():
        expect_honest(problem)
        for done, metric in enumerate(METRICS[problem.device.type]):
            progress(done, len(shares), metric)
            measurement, note = _measure(problem, seed, metric, int(budget_ns * shares[metric]), health, seal, counted)
            measurements += [measurement] if measurement is not None else []
            notes += [note] if note else []
        setup = measure_setup(problem, seed, int(budget_ns * _SETUP_SHARE))
        counted.instructions(problem, seed)
    measurements += [setup] if setup is not None else []
    facts |= {"after": health.read(), "notes": counted.notes}
    return BenchReply(
        Status.OK, "; ".join(notes), int(cost.flops), int(cost.bytes), measurements, facts, counted.counters
    )


class Prepared:
    """The first metric of one problem, measured in slices that the parent interleaves with another child's.

    metric: what is measured; `cold` where a GPU variant cannot be captured in a graph.
    """

    def __init__(self, problem: CaseProblem, seed: int, slice_ns: int, seal: TamperGuard) -> None:
        self._problem = problem
        self._seal = seal
        self._slice_ns = min(slice_ns, _SLICE_NS)
        self.metric = METRICS[problem.device.type][0]
        self.note = ""
        with problem.modes(), watch(seal):
            try:
                self._timer = open_timer(problem, seed, self.metric, _SLICE_NS, PLACEMENTS)
            except CaptureError as error:
                self.metric, self.note = "cold", f"no CUDA graph: {error}"
                self._timer = open_timer(problem, seed, self.metric, _SLICE_NS, PLACEMENTS)

    def sample(self) -> SampleReply:
        """One slice: each placement once, and again while the slice's time is not over."""
        samples: list[float] = []
        with self._problem.modes(), watch(self._seal), no_collection():
            end = perf_counter_ns() + self._slice_ns
            while True:
                for _ in range(self._timer.placements):
                    samples += self._timer.take()
                if perf_counter_ns() >= end:
                    return SampleReply(Status.OK, self.note, samples, self.metric)

    def finish(self) -> SampleReply:
        """Verifies one more slice, on numbers never seen; WrongResultError when it is wrong."""
        with self._problem.modes(), watch(self._seal):
            self._timer.verify()
        return SampleReply(Status.OK, self.note, [], self.metric)


def _measure(
    problem: CaseProblem,
    seed: int,
    metric: str,
    budget_ns: int,
    health: DeviceHealth,
    seal: TamperGuard,
    counted: CallCounters,
) -> tuple[Measurement | None, str]:
    """(one metric, a note), without the metric where it cannot be measured.

    counted: gets what the metric's calls can be counted by.
    """
    try:
        timer = open_timer(problem, seed, metric, budget_ns, PLACEMENTS)
        samples, dropped, reasons = _sample(timer, budget_ns, health, seal)
        if metric == "graph":
            assert isinstance(timer, GraphTimer)
            counted.cycles(timer, problem.device)
        timer.verify()
    except CaptureError as error:
        return None, f"no metric {metric}: the variant cannot be captured in a CUDA graph ({error})"
    except NoMetricError as error:
        return None, f"no metric {metric}: {error}"
    if not samples:
        return None, f"no metric {metric}: the device was held back all the time ({reasons})"
    return summarize(metric, samples, dropped, reasons), ""


def _sample(timer: Timer, budget_ns: int, health: DeviceHealth, seal: TamperGuard) -> tuple[list[float], int, str]:
    """(samples kept, samples dropped because the device was held back, the reasons)."""
    samples: list[float] = []
    dropped, reasons = 0, dict[str, None]()
    start = perf_counter_ns()
    while True:
        for _ in range(timer.placements):
            taken = timer.take()
            seal.expect_clockwork()
            reason = health.held_back()
            if reason:
                dropped += len(taken)
                reasons[reason] = None
            else:
                samples += taken
        if _is_enough(samples, (perf_counter_ns() - start) / max(1, budget_ns)):
            return samples, dropped, "; ".join(reasons)


def _is_enough(samples: list[float], spent: float) -> bool:
    """Whether to stop, `spent` being the part of the budget that is gone."""
    if spent >= _LONGEST or len(samples) >= _MOST_SAMPLES:
        return True
    if spent >= 1:
        return len(samples) >= FEWEST
    return spent >= _SHORTEST and is_narrow(samples)
