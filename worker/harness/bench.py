"""Benches one variant on one case: samples every metric until its median is narrow enough or the budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from operator import or_
from statistics import median
from time import perf_counter_ns
from typing import Any, Protocol

import torch
from torch import Tensor

from warpwatch.contract.activities import Activity
from warpwatch.contract.measurement import JUDGED, LAUNCH, METRICS, PROTOCOLS, SETUP, Counter, Measurement
from warpwatch.contract.messages import BenchReply, GraphPlan, SampleReply
from warpwatch.contract.words import Fault, LaneUse, Status
from warpwatch.operator import Cost, Operator, Variant, case

from .checks.anticheat import expect_honest
from .checks.preparation import expect_no_answer
from .failures import WrongResultError
from .guards.agreement import BUSY, CYCLES, CallTimes
from .guards.integrity import TamperGuard, expect_unaltered, watch
from .problem import CaseProblem, Progress
from .timers import cpu as timer_cpu
from .timers import cuda as timer_cuda
from .timers import kernel as timer_kernel
from .timers.counts import CallCounts, count_call, count_cycles
from .timers.cuda import PAIRED, CudaColdTimer, GraphTimer, sleep
from .timers.graphs import CaptureError, NoMetricError
from .timers.health import DeviceHealth
from .timers.kernel import KernelTimer
from .timers.launch import FASTEST, LaunchTimer
from .timers.rotation import no_collection
from .timers.summary import FEWEST, add_time, is_narrow, quantile, summarize
from .timers.warm_up import call_first
from .turns import STOPWATCH

SHARES = {
    "cuda": {"graph": 0.15, "kernel": 0.02, "cold": 0.02, "hot": 0.02, "call": 0.02, LAUNCH: 0.02},
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
"""Of the time of a variant on a case: what all metrics that get no verdicts may take."""
ENERGY_BUDGET_NS = 5_000_000_000
"""Budget from which a bench measures energy as well. That takes about a second, which is a fifth of it, and as long as
everything else of a bench with the usual budget. It comes last, because it warms the card."""
_RESTED_NS = 20_000_000
"""After so long without a slice a side of a comparison warms up again before its first: the other side may still have
captured, for as long as its host is slow, and the clocks settle anew."""
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
        """The budget without the time that opening the timer and verification take. Verification takes about as long as
        opening, because both draw inputs and call the variant."""
        return self if self.allowed_ns is None else replace(self, allowed_ns=self.allowed_ns - 2 * opening_ns)

    @property
    def sampling_ns(self) -> int:
        return self.usual_ns if self.allowed_ns is None else max(0, min(self.usual_ns, self.allowed_ns))


@dataclass(frozen=True, slots=True)
class _Samples:
    """The samples that a timer took of one metric. dropped: how many further samples were dropped, because the device
    was throttled. reasons: why the device was throttled."""

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
    first: dict[str, Counter] = {}
    if problem.turns.are_taken:
        seconds = call_first(problem, seed, guard)
        first = {"first_call": Counter("seconds", seconds, seconds, seconds, 1)}
    with problem.turns.use(LaneUse.DEVICE):
        reply = _bench(problem, seed, budget_ns, guard, progress)
    return replace(reply, counters={**reply.counters, **first})


def _bench(problem: CaseProblem, seed: int, budget_ns: int, guard: TamperGuard, progress: Progress) -> BenchReply:
    cost, kind = problem.operator.cost_of(problem.case), problem.device.type
    health = DeviceHealth(problem.device)
    facts: dict[str, Any] = {"empty_ns": empty_ns(problem.device), "before": health.read()}
    begin = problem.turns.now_ns()
    with problem.modes(), watch(guard), no_collection():
        expect_honest(problem, seed)
        with _quiet_to_prepare(problem):
            is_amortised = expect_no_answer(problem)
        results = _measure_all(_BenchContext(problem, seed, health, guard), budget_ns, begin, progress)
        taken = [result.samples for result in results if result.samples is not None]
        testimony = _expect_agreement(problem, seed, reduce(or_, [result.testimony for result in results]))
        with _quiet_to_prepare(problem):
            setup = measure_setup(problem, seed, int(budget_ns * _SETUP_SHARE))
        call_ns = median(taken[0].nanoseconds) if taken else None
        counts = reduce(or_, [result.counts for result in results]) | CallCounts(notes=testimony.notes)
        counts |= count_call(problem, seed, call_ns, with_energy=budget_ns >= ENERGY_BUDGET_NS)
    # No code of the variant runs any more that could change a list.
    measurements = [samples.summarize(kind) for samples in taken]
    notes = list(counts.notes)
    if setup is not None:
        if not is_amortised:
            notes.append("The time of `prepare` is part of every metric: a call uses nothing else")
            measurements = [add_time(measurement, setup.median_ns) for measurement in measurements]
        measurements.append(setup)
    facts |= {"after": health.read(), "notes": notes, "testimony": dict(testimony.facts)}
    reasons = "; ".join(result.reason for result in results if result.reason)
    reply = BenchReply(Status.OK, reasons, int(cost.flops), int(cost.bytes), measurements, facts, dict(counts.counters))
    missed = [metric for metric, result in zip(SHARES[kind], results, strict=True) if not result.is_capturable]
    return replace(reply, fault=Fault.NOT_CAPTURABLE, subjects=missed) if missed else reply


def _quiet_to_prepare(problem: CaseProblem) -> AbstractContextManager[None]:
    """Has a quiet host as well where the variant prepares, which is timed by the host's clock."""
    return problem.turns.use(LaneUse.DEVICE if problem.variant.prepare is None else LaneUse.QUIET)


def plan_prepared(
    problem: CaseProblem, seed: int, slice_ns: int, guard: TamperGuard, sides: int, metrics: Sequence[str]
) -> SampleReply:
    """What `Prepared` measures of a variant on a GPU; sides: how many children prepare it at the same time. metrics:
    with `kernel`, no graph even where one captures the variant."""
    pace = replace(PAIRED, slice_ns=min(slice_ns, PAIRED.slice_ns))
    with problem.modes(), watch(guard):
        measured = timer_cuda.measure_set(problem, seed)
        if measured.device_ns is None or "kernel" in metrics:
            plan = timer_kernel.plan_sessions(problem, seed, sides)
        else:
            plan = timer_cuda.plan_graphs(problem, seed, PLACEMENTS, pace=pace, sides=sides)
    times_itself = measured.may_have_tuned or problem.variant.prepare is not None or torch.backends.cudnn.benchmark
    return SampleReply(Status.OK, "", [], plan.metric, plan, times_itself=times_itself)


class Prepared:
    """Warmed-up timers for the judged metrics of a problem, whose slices the parent interleaves with another child's.

    metric: of the device's time: the device kind's first metric, or `kernel` where a GPU variant cannot be captured in
    a CUDA graph. plan: what to follow on a GPU; without it, both timers plan for themselves. metrics: those of JUDGED
    to measure, none for all. no_launch: why `launch` is not measured although it was asked for.
    """

    def __init__(
        self,
        problem: CaseProblem,
        seed: int,
        slice_ns: int,
        guard: TamperGuard,
        plan: GraphPlan | None = None,
        metrics: Sequence[str] = (),
    ) -> None:
        self._problem = problem
        self._guard = guard
        self._slice_ns = min(slice_ns, _SLICE_NS[problem.device.type])
        self.metric = plan.metric if plan is not None else METRICS[problem.device.type][0]
        self.note = self.no_launch = ""
        self._typical_ns = self._launch_ns = self._setup_ns = 0.0
        wanted = set(metrics or JUDGED[problem.device.type]) & set(JUDGED[problem.device.type])
        self._launch: LaunchTimer | None = None
        with problem.modes(), watch(guard):
            if not expect_no_answer(problem) and (setup := measure_setup(problem, seed, self._slice_ns)) is not None:
                self._setup_ns = setup.median_ns
            self._timer: Any = self._open_timer(seed, plan) if wanted - {LAUNCH} else None
            if LAUNCH in wanted:
                try:
                    self._launch = LaunchTimer(problem, seed, plan)
                except NoMetricError as error:
                    self.no_launch = str(error)
        self._warm_since_ns: int | None = perf_counter_ns()

    def _open_timer(self, seed: int, plan: GraphPlan | None) -> Any:
        """The timer of the device's time, or of the CPU's."""
        try:
            return open_timer(self._problem, seed, self.metric, self._slice_ns, PLACEMENTS, plan, PAIRED)
        except CaptureError as error:
            self.metric = "kernel"
            self.note = f"Measured as `kernel`: a CUDA graph cannot capture the variant ({error})"
            plan = None if plan is None else replace(plan, metric=self.metric)
            return open_timer(self._problem, seed, self.metric, self._slice_ns, PLACEMENTS, plan)

    def sample(self, wait: float = 0.0, launch_wait: float = 0.0, core: int | None = None) -> SampleReply:
        """Takes one slice of each metric: every placement at least once, repeated until the slice's time is over, to
        the nearest repetition; then `launch`.

        wait, launch_wait: make every call longer by this share of the slice before it that had none. core: see
        LaunchTimer.take.
        """
        samples: list[float] = []
        with self._problem.modes(), watch(self._guard), no_collection():
            if self._timer is not None:
                self._warm_up_after_rest()
                samples = self._take_slices(wait * self._typical_ns)
                self._typical_ns = self._typical_ns if wait else median(samples)
            launches = self._take_launches(launch_wait * self._launch_ns, core)
            if launches and not launch_wait:
                self._launch_ns = quantile(sorted(launches), FASTEST)
        return SampleReply(
            Status.OK,
            self.note,
            samples,
            self.metric,
            launch_ns=launches,
            no_launch=self.no_launch,
            core=self._launch.core if self._launch is not None else None,
            prepare_ns=self._setup_ns,
        )

    def _warm_up_after_rest(self) -> None:
        """Before the first slice; later ones take turns."""
        since_ns, self._warm_since_ns = self._warm_since_ns, None
        if since_ns is not None and perf_counter_ns() - since_ns > _RESTED_NS and isinstance(self._timer, GraphTimer):
            self._timer.warm_up(PAIRED.warm_up_ns)

    def _take_slices(self, wait_ns: float) -> list[float]:
        samples: list[float] = []
        begin, repetitions = perf_counter_ns(), 0
        while True:
            for _ in range(self._timer.placements):
                samples += [sample + self._setup_ns for sample in self._timer.take(wait_ns)]
            passed_ns, repetitions = perf_counter_ns() - begin, repetitions + 1
            if passed_ns + passed_ns / repetitions / 2 >= self._slice_ns:
                return samples

    def _take_launches(self, wait_ns: float, core: int | None) -> list[float]:
        if self._launch is None:
            return []
        try:
            return [sample + self._setup_ns for sample in self._launch.take(wait_ns, core)]
        except NoMetricError as error:
            self._launch, self.no_launch = None, str(error)
            return []

    def testify(self) -> SampleReply:
        """The part of `finish` for which nothing else may use the device."""
        if isinstance(self._timer, GraphTimer | CudaColdTimer):
            with self._problem.modes(), watch(self._guard):
                self._timer.testify()
        return SampleReply(Status.OK, self.note, [], self.metric)

    def finish(self) -> SampleReply:
        """Verifies one more slice of each metric on fresh inputs; raises WrongResultError when it is wrong."""
        with self._problem.modes(), watch(self._guard):
            for timer in (self._timer, self._launch):
                if timer is not None:
                    timer.verify()
        return SampleReply(Status.OK, self.note, [], self.metric)


@dataclass(frozen=True, slots=True)
class _BenchContext:
    """The values that all metrics of one bench share."""

    problem: CaseProblem
    seed: int
    health: DeviceHealth
    guard: TamperGuard


@dataclass(frozen=True, slots=True)
class _MetricResult:
    """The result of measuring one metric. reason: why there are no samples. is_capturable: False where that is because
    no CUDA graph can hold the launches. counts: cycles of `graph`. testimony: times that other timers can contradict.
    """

    samples: _Samples | None = None
    reason: str = ""
    is_capturable: bool = True
    counts: CallCounts = field(default_factory=CallCounts)
    testimony: CallTimes = field(default_factory=CallTimes)


def _measure_all(context: _BenchContext, budget_ns: int, begin_ns: int, progress: Progress) -> list[_MetricResult]:
    """Every metric of the device, in order. begin_ns: the start of the bench, whose time limits those that get no
    verdicts."""
    kind, now_ns = context.problem.device.type, context.problem.turns.now_ns
    results, shares, side_end = list[_MetricResult](), SHARES[kind], 0
    left = len([metric for metric in shares if metric not in JUDGED[kind]])
    for done, metric in enumerate(shares):
        progress(done, len(shares), metric)
        now, budget = now_ns(), Budget(int(budget_ns * shares[metric]))
        if metric not in JUDGED[kind]:
            side_end = side_end or now + int((now - begin_ns) * _SIDE_SHARE / (1 - _SIDE_SHARE))
            budget = replace(budget, allowed_ns=(side_end - now) // left)
            left -= 1
        results.append(_measure(context, metric, budget))
    return results


def _measure(context: _BenchContext, metric: str, budget: Budget) -> _MetricResult:
    """Samples one metric, and verifies the results of timed calls."""
    problem, turns, counts = context.problem, context.problem.turns, CallCounts()
    try:
        begin = turns.now_ns()
        timer = open_timer(problem, context.seed, metric, budget.usual_ns, PLACEMENTS)
        budget = budget.without_opening(turns.now_ns() - begin)
        with turns.use(LaneUse.QUIET if metric in ("call", LAUNCH) else LaneUse.DEVICE):
            times, kept = _sample(timer, metric, budget, context.health, context.guard)
        if metric == "graph":
            assert isinstance(timer, GraphTimer)
            counts = count_cycles(timer, problem.device)
        timer.verify()
        expect_unaltered(times, kept.nanoseconds)
        testimony = _testify(metric, timer, times, counts)
    except CaptureError as error:
        reason = f"No metric {metric}: the variant cannot be captured in a CUDA graph ({error})"
        return _MetricResult(reason=reason, is_capturable=False, counts=counts)
    except NoMetricError as error:
        return _MetricResult(reason=f"No metric {metric}: {error}", counts=counts)
    if not times:
        reason = f"No metric {metric}: the device was throttled all the time ({kept.reasons})"
        return _MetricResult(reason=reason, counts=counts)
    return _MetricResult(kept, counts=counts, testimony=testimony)


def _testify(metric: str, timer: Timer, samples: list[float], counts: CallCounts) -> CallTimes:
    """The times and facts that `timer` has seen while it took `samples`; counts: with the cycles of `graph`."""
    if not samples:
        return CallTimes()
    times, facts, is_parallel = {metric: median(samples)}, dict[str, float](), None
    if isinstance(timer, KernelTimer):
        times[BUSY] = median(samples) * timer.busy_share
        facts |= {"eager_launches": timer.launches, "busy_share": timer.busy_share}
        is_parallel = timer.is_parallel
    if isinstance(timer, GraphTimer) and metric == "graph":
        if timer.launches is not None:
            facts["captured_launches"] = timer.launches
        if timer.replay_times is not None:
            facts["repeated_share"] = timer.replay_times.repeated_share
            facts["timed_share"] = timer.replay_times.timed_share
        if "cycles" in counts.counters:
            times[CYCLES] = counts.counters["cycles"].median / counts.counters["clock"].median
    return CallTimes(times, facts, is_parallel)


def _expect_agreement(problem: CaseProblem, seed: int, testimony: CallTimes) -> CallTimes:
    """The testimony with what was measured again. Raises WrongResultError when two timers contradict each other, and do
    so whenever both measure again."""
    looks = 0
    while (broken := testimony.find_disagreement()) is not None:
        if looks == _MORE_LOOKS:
            short, witness = (f"{name} {testimony.times[name] / 1e3:.2f} µs" for name in broken)
            raise WrongResultError(
                f"Two ways to time the call disagree: {short}, {witness}", Fault.TIMES_DISAGREE, *broken
            )
        testimony |= _measure_again(problem, seed, broken)
        looks += 1
    return testimony


def _measure_again(problem: CaseProblem, seed: int, times: tuple[str, str]) -> CallTimes:
    testimony = CallTimes()
    for metric in dict.fromkeys({BUSY: "kernel", CYCLES: "graph"}.get(name, name) for name in times):
        timer = open_timer(problem, seed, metric, _SLICE_NS[problem.device.type], PLACEMENTS)
        samples = [sample for _ in range(timer.placements) for sample in timer.take()]
        counts = CallCounts()
        if isinstance(timer, GraphTimer) and metric == "graph":
            counts = count_cycles(timer, problem.device)
        testimony |= _testify(metric, timer, samples, counts)
    return testimony


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


_EMPTY_BUDGET_NS = 5_000_000
_SETUP_SAMPLES = 10
_FEWEST_SETUPS = 3
_SETUP_SEEDS = 104_729


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
        timers = {metric: open_timer(problem, 0, metric, _EMPTY_BUDGET_NS, 1) for metric in SHARES[device.type]}
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


@STOPWATCH.measure(Activity.WARM_UP)
def open_timer(
    problem: CaseProblem,
    seed: int,
    metric: str,
    budget_ns: int,
    placements: int,
    plan: GraphPlan | None = None,
    pace: timer_cuda.Pace = timer_cuda.USUAL,
) -> timer_cpu.CpuHotTimer | GraphTimer | CudaColdTimer | KernelTimer | LaunchTimer:
    """A warmed-up timer for one metric of the device; CaptureError when a CUDA graph cannot capture the variant."""
    if metric == "kernel":
        return timer_kernel.KernelTimer(problem, seed, plan)
    if metric == LAUNCH:
        return LaunchTimer(problem, seed, plan)
    if problem.device.type == "cuda":
        return timer_cuda.open_timer(problem, seed, metric, placements, plan, pace)
    return timer_cpu.open_timer(problem, seed, metric, budget_ns)


def _launch_empty_kernel(x: Tensor) -> Tensor:
    sleep(0)
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
