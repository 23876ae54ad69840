"""Benches one variant on one case: samples every metric until its median is narrow enough or the budget is spent."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from warpwatch.contract.activities import Activity
from warpwatch.contract.measurement import METRICS, PROTOCOLS, Measurement
from warpwatch.contract.messages import BenchReply, GraphPlan, SampleReply
from warpwatch.contract.words import Fault, LaneUse, Status

from .agreement import BUSY, CYCLES, find_disagreement
from .anticheat import expect_honest
from .capture import CaptureError, NoMetricError
from .extras import CallCounters, empty_ns, measure_setup, open_timer
from .failures import WrongResultError
from .health import DeviceHealth
from .integrity import TamperGuard, expect_unaltered, watch
from .preparation import expect_no_answer
from .problem import CaseProblem, Progress
from .rotation import no_collection
from .spent import STOPWATCH
from .summary import FEWEST, add_time, is_narrow, summarize
from .timer_cuda import PAIRED, CudaColdTimer, GraphTimer
from .timer_kernel import KernelTimer
from .tuning import call_first

SHARES = {
    "cuda": {"graph": 0.15, "kernel": 0.02, "cold": 0.02, "hot": 0.02, "call": 0.02},
    "cpu": {"hot": 0.6, "cold": 0.4},
}
"""Each metric's share of the budget.

With one second, the first metric of a GPU gets what triton's do_bench takes: 25 ms to warm up and 100 ms.
"""
_SETUP_SHARE = 0.1
PLACEMENTS = 6
"""Memory placements on a GPU. Small kernels vary more between placements than their samples vary within one."""
_MOST_SAMPLES = 2000
_SHORTEST = 0.2
"""The share of a metric's budget that is always used, because samples taken at once agree more than samples over time.
"""
_LONGEST = 10
"""A metric may take this many times its budget to collect its ten samples."""
_MORE_LOOKS = 2
"""After a disagreement of two timers: on a host that stalled for seconds, those of honest calls disagreed twice."""
_SIDE_SHARE = 0.2
"""Of the time of a variant on a case: what all metrics but the first may take. No verdict is about them."""
ENERGY_BUDGET_NS = 5_000_000_000
"""Budget from which a bench measures energy as well. That takes about a second, which is a fifth of it, and as long as
everything else of a bench with the usual budget. It comes last, because it warms the card."""
_SLICE_NS = {"cuda": 10_000_000, "cpu": 40_000_000}
"""The longest slice of a comparison, per device kind. On a GPU rounds differ by more than slices do, so longer slices
make no comparison narrower."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The time of one metric. usual_ns: of its samples. allowed_ns: of opening its timer, samples and verification
    together; None where only the samples are bounded."""

    usual_ns: int
    allowed_ns: int | None = None

    def without_opening(self, opening_ns: int) -> Budget:
        """What is left once the timer is open. To verify takes about as long: both draw inputs and call the variant."""
        return self if self.allowed_ns is None else replace(self, allowed_ns=self.allowed_ns - 2 * opening_ns)

    @property
    def sampling_ns(self) -> int:
        return self.usual_ns if self.allowed_ns is None else max(0, min(self.usual_ns, self.allowed_ns))


@dataclass(frozen=True, slots=True)
class _Samples:
    """What a timer took of one metric. dropped: how many samples more, because the device was throttled, and why."""

    metric: str
    nanoseconds: tuple[float, ...]
    dropped: int
    reasons: str

    def summarize(self, device_kind: str) -> Measurement:
        return summarize(self.metric, self.nanoseconds, self.dropped, self.reasons, PROTOCOLS[device_kind])


class Timer(Protocol):
    """Takes slices of samples in nanoseconds per call; `placements` slices cover every memory placement once."""

    placements: int

    def take(self) -> list[float]: ...
    def verify(self) -> None: ...


def bench(problem: CaseProblem, seed: int, budget_ns: int, guard: TamperGuard, progress: Progress) -> BenchReply:
    """Measures every metric and verifies the results of timed calls; a wrong one raises WrongResultError.

    Of several children that bench, one at a time has the device.
    """
    if problem.turns.are_taken:
        call_first(problem, seed, guard)
    with problem.turns.use(LaneUse.DEVICE):
        return _bench(problem, seed, budget_ns, guard, progress)


def _bench(problem: CaseProblem, seed: int, budget_ns: int, guard: TamperGuard, progress: Progress) -> BenchReply:
    cost, now_ns = problem.operator.cost(problem.case), problem.turns.now_ns
    health = DeviceHealth(problem.device)
    facts: dict[str, Any] = {"empty_ns": empty_ns(problem.device), "before": health.read()}
    taken, notes, counters, testimony = list[_Samples](), list[str](), CallCounters(), _Testimony()
    shares, begin, side_end = SHARES[problem.device.type], now_ns(), 0
    with problem.modes(), watch(guard), no_collection():
        expect_honest(problem, seed)
        with _quiet_to_prepare(problem):
            is_amortised = expect_no_answer(problem)
        for done, metric in enumerate(METRICS[problem.device.type]):
            progress(done, len(shares), metric)
            now, budget = now_ns(), Budget(int(budget_ns * shares[metric]))
            if done == 1:
                side_end = now + int((now - begin) * _SIDE_SHARE / (1 - _SIDE_SHARE))
            if done:
                budget = replace(budget, allowed_ns=(side_end - now) // (len(shares) - done))
            samples, note = _measure(problem, seed, metric, budget, health, guard, counters, testimony)
            taken += [samples] if samples is not None else []
            notes += [note] if note else []
        testimony.expect_agreement(problem, seed)
        counters.notes += testimony.notes
        with _quiet_to_prepare(problem):
            setup = measure_setup(problem, seed, int(budget_ns * _SETUP_SHARE))
        counters.count_instructions(problem, seed)
        if taken:
            counters.count_memory(problem, seed, median(taken[0].nanoseconds))
        if taken and budget_ns >= ENERGY_BUDGET_NS:
            counters.count_energy(problem, seed, median(taken[0].nanoseconds))
    # No code of the variant runs any more that could change a list.
    measurements = [samples.summarize(problem.device.type) for samples in taken]
    if setup is not None:
        if not is_amortised:
            counters.notes.append("The time of `prepare` is part of every metric: a call uses nothing else")
            measurements = [add_time(measurement, setup.median_ns) for measurement in measurements]
        measurements.append(setup)
    facts |= {"after": health.read(), "notes": counters.notes, "testimony": testimony.facts}
    return BenchReply(
        Status.OK, "; ".join(notes), int(cost.flops), int(cost.bytes), measurements, facts, counters.counters
    )


def _quiet_to_prepare(problem: CaseProblem) -> AbstractContextManager[None]:
    """Has a quiet host as well where the variant prepares, which is timed by the host's clock."""
    return problem.turns.use(LaneUse.DEVICE if problem.variant.prepare is None else LaneUse.QUIET)


class Prepared:
    """A warmed-up timer for the first metric of a problem, whose slices the parent interleaves with another child's.

    metric: the device kind's first metric, or `cold` where a GPU variant cannot be captured in a CUDA graph. plan: with
    it the same code can be prepared again while others use the device; None where that would disturb what is timed.
    """

    plan: GraphPlan | None = None

    def __init__(
        self, problem: CaseProblem, seed: int, slice_ns: int, guard: TamperGuard, plan: GraphPlan | None = None
    ) -> None:
        self._problem = problem
        self._guard = guard
        self._slice_ns = min(slice_ns, _SLICE_NS[problem.device.type])
        self.metric = METRICS[problem.device.type][0]
        self.note = ""
        self._typical_ns = 0.0
        self._setup_ns = 0.0
        with problem.modes(), watch(guard):
            if not expect_no_answer(problem) and (setup := measure_setup(problem, seed, self._slice_ns)) is not None:
                self._setup_ns = setup.median_ns
            try:
                self._timer = open_timer(problem, seed, self.metric, self._slice_ns, PLACEMENTS, plan, PAIRED)
                if isinstance(self._timer, GraphTimer) and not _times_itself(problem, self._timer):
                    self.plan = self._timer.plan
            except CaptureError as error:
                self.metric = "cold"
                self.note = f"Measured as `cold`: a CUDA graph cannot capture the variant ({error})"
                self._timer = open_timer(problem, seed, self.metric, self._slice_ns, PLACEMENTS)

    def sample(self, wait: float = 0.0) -> SampleReply:
        """Takes one slice: every placement at least once, repeated until the slice's time is over, to the nearest
        repetition.

        wait: makes every call longer by this share of the slice before it that had none.
        """
        samples: list[float] = []
        with self._problem.modes(), watch(self._guard), no_collection():
            begin, repetitions, wait_ns = perf_counter_ns(), 0, wait * self._typical_ns
            while True:
                for _ in range(self._timer.placements):
                    samples += [sample + self._setup_ns for sample in self._timer.take(wait_ns)]
                passed_ns, repetitions = perf_counter_ns() - begin, repetitions + 1
                if passed_ns + passed_ns / repetitions / 2 >= self._slice_ns:
                    self._typical_ns = self._typical_ns if wait else median(samples)
                    return SampleReply(Status.OK, self.note, samples, self.metric)

    def testify(self) -> SampleReply:
        """The part of `finish` for which nothing else may use the device."""
        if isinstance(self._timer, GraphTimer | CudaColdTimer):
            with self._problem.modes(), watch(self._guard):
                self._timer.testify()
        return SampleReply(Status.OK, self.note, [], self.metric)

    def finish(self) -> SampleReply:
        """Verifies one more slice on fresh inputs; raises WrongResultError when it is wrong."""
        with self._problem.modes(), watch(self._guard):
            self._timer.verify()
        return SampleReply(Status.OK, self.note, [], self.metric)


def _times_itself(problem: CaseProblem, timer: GraphTimer) -> bool:
    """Whether something is timed each time the problem is prepared: its `prepare`, or configurations of its kernels."""
    return problem.variant.prepare is not None or timer.may_have_tuned or torch.backends.cudnn.benchmark


def _measure(
    problem: CaseProblem,
    seed: int,
    metric: str,
    budget: Budget,
    health: DeviceHealth,
    guard: TamperGuard,
    counters: CallCounters,
    testimony: _Testimony,
) -> tuple[_Samples | None, str]:
    """(the samples of one metric or None, a note on why there are none); adds cycle counts to `counters`, and what
    other timers can contradict to `testimony`."""
    turns = problem.turns
    try:
        begin = turns.now_ns()
        timer = open_timer(problem, seed, metric, budget.usual_ns, PLACEMENTS)
        budget = budget.without_opening(turns.now_ns() - begin)
        with turns.use(LaneUse.QUIET if metric == "call" else LaneUse.DEVICE):
            times, kept = _sample(timer, metric, budget, health, guard)
        if metric == "graph":
            assert isinstance(timer, GraphTimer)
            counters.count_cycles(timer, problem.device)
        timer.verify()
        expect_unaltered(times, kept.nanoseconds)
        testimony.add(metric, timer, times, counters)
    except CaptureError as error:
        return None, f"No metric {metric}: the variant cannot be captured in a CUDA graph ({error})"
    except NoMetricError as error:
        return None, f"No metric {metric}: {error}"
    if not times:
        return None, f"No metric {metric}: the device was throttled all the time ({kept.reasons})"
    return kept, ""


class _Testimony:
    """What the timers of one bench say of the same call on a GPU.

    facts: how far replays on repeated numbers and buffers are from those on new ones, how many kernels, copies and
    fills an eager and a captured call launch, and the share of their time in which any of them runs. They are stored
    beside the results.
    """

    def __init__(self) -> None:
        self.facts: dict[str, float] = {}
        self._times: dict[str, float] = {}
        self._is_parallel = False

    def add(self, metric: str, timer: Timer, samples: list[float], counters: CallCounters) -> None:
        """Takes what `timer` has seen while it took `samples`; counters: with the cycles of `graph`."""
        if not samples:
            return
        self._times[metric] = median(samples)
        if isinstance(timer, KernelTimer):
            self._times[BUSY] = median(samples) * timer.busy_share
            self._is_parallel = timer.is_parallel
            self.facts |= {"eager_launches": timer.launches, "busy_share": timer.busy_share}
        if isinstance(timer, GraphTimer) and metric == "graph":
            if timer.launches is not None:
                self.facts["captured_launches"] = timer.launches
            if timer.replay_times is not None:
                self.facts["repeated_share"] = timer.replay_times.repeated_share
                self.facts["timed_share"] = timer.replay_times.timed_share
            if "cycles" in counters.counters:
                self._times[CYCLES] = counters.counters["cycles"].median / counters.counters["clock"].median

    @property
    def notes(self) -> list[str]:
        """What a library does otherwise while it is captured, which no rule forbids."""
        captured, eager = (self.facts.get(name, 0.0) for name in ("captured_launches", "eager_launches"))
        if not 0 < captured < eager:
            return []
        return [f"A captured call launches {captured:g} kernels, copies and fills, and an eager one {eager:g}"]

    def expect_agreement(self, problem: CaseProblem, seed: int) -> None:
        """Raises WrongResultError when two timers contradict each other, and do so whenever both measure again."""
        looks = 0
        while (broken := find_disagreement(self._times, is_parallel=self._is_parallel)) is not None:
            if looks == _MORE_LOOKS:
                short, witness = (f"{name} {self._times[name] / 1e3:.2f} µs" for name in broken)
                raise WrongResultError(
                    f"Two ways to time the call disagree: {short}, {witness}", Fault.TIMES_DISAGREE, *broken
                )
            self._measure_again(problem, seed, broken)
            looks += 1

    def _measure_again(self, problem: CaseProblem, seed: int, times: tuple[str, str]) -> None:
        again = CallCounters()
        for metric in dict.fromkeys({BUSY: "kernel", CYCLES: "graph"}.get(name, name) for name in times):
            timer = open_timer(problem, seed, metric, _SLICE_NS[problem.device.type], PLACEMENTS)
            samples = [sample for _ in range(timer.placements) for sample in timer.take()]
            if isinstance(timer, GraphTimer) and metric == "graph":
                again.count_cycles(timer, problem.device)
            self.add(metric, timer, samples, again)


@STOPWATCH.measure(Activity.SAMPLES)
def _sample(
    timer: Timer, metric: str, budget: Budget, health: DeviceHealth, guard: TamperGuard
) -> tuple[list[float], _Samples]:
    """(times in ns as a list, which code that searches memory finds and changes; the same where it cannot)."""
    samples: list[float] = []
    kept: tuple[float, ...] = ()
    dropped, reasons = 0, dict[str, None]()
    start = perf_counter_ns()
    while True:
        for _ in range(timer.placements):
            taken = timer.take()
            guard.expect_timing_bindings_intact()
            expect_unaltered(samples, kept)
            reason = health.throttle_reasons()
            if reason:
                dropped += len(taken)
                reasons[reason] = None
            else:
                samples += taken
                kept = (*kept, *taken)
        if _is_enough(samples, perf_counter_ns() - start, budget):
            return samples, _Samples(metric, kept, dropped, "; ".join(reasons))


def _is_enough(samples: list[float], spent_ns: int, budget: Budget) -> bool:
    """Whether to stop sampling; every placement had its turn."""
    if spent_ns >= _LONGEST * budget.usual_ns or len(samples) >= _MOST_SAMPLES:
        return True
    if spent_ns >= budget.sampling_ns:
        return len(samples) >= FEWEST
    return spent_ns >= _SHORTEST * budget.sampling_ns and is_narrow(samples)
