"""Times calls on an NVIDIA GPU with device events.

`graph`: CUDA graphs of launches over input sets that cover more than three times the L2, in several memory placements.
Replays follow each other without a gap, so launch cost is not included and data is cold. `cold`: one eager call after
the L2 was overwritten, queued behind a sleeping kernel so that the host is ahead. `hot`: a CUDA graph of launches on
one input set, which stays in the L2 if it fits. `call`: host time from the call until the device is idle. Outputs of a
graph stay in its memory, so those of the last replay can be verified.

Sets and launches follow from the device's time for a call and from memory, never from the host's time: a graph with
fewer launches shows up to 2 % more for each, so a slower host would look like a slower kernel.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from os import urandom
from statistics import median
from time import perf_counter_ns
from time import sleep as sleep_on_host
from typing import Any

import torch

from warpwatch.contract.messages import GraphPlan
from warpwatch.contract.words import Fault, LaneUse, Status

from ..failures import Refusal, WrongResultError
from ..guards.agreement import ReplayTimes, expect_equal_launches, expect_work_in_replays
from ..guards.integrity import expect_unaltered
from ..guards.l2 import expect_nothing_set_aside
from ..problem import CaseProblem
from .graphs import CaptureError, capture, launches_on_default_stream
from .rotation import Rotation

SLICE_NS = 20_000_000
_EAGER_SETS = 8
_REPLAYS = 10
_GRAPH_NS = 2_000_000
_MOST_LAUNCHES = 200
_CAPTURES_NS = 40_000_000
"""The longest time for the captures of all placements, roughly, where that leaves two of them. Each capture of a call
takes the host's time for it. With fewer placements no time is different, only less well known."""
_HOST_WALK_NS = 400_000_000
"""The longest time for the captures of one placement, roughly. No call that takes the host less than 1.5 ms gets fewer
sets or launches by it."""
_EAGER_CALLS = 8
"""Eager calls of `launch` in a row."""
_EAGER_CALLS_NS = 2_000_000
"""The longest device time of these, roughly: the next sample waits until the device is idle."""
_LONGEST_EAGER_CALL_NS = 25_000_000
"""Of the device. In a comparison, launches of longer calls would take more than a sixth of the time."""
_EAGER_SAMPLES = 10
_REPLAY_LAUNCH_NS = 30_000
_QUEUE_NS = 50_000_000
"""After this time no set is queued a second time to learn how long that takes."""
_SINGLE_LEAD_NS = 500_000
_LAUNCH_SLACK = 1.25
"""How much longer than it just did the host may take to launch a graph."""
_NOTICEABLE_NS = 50_000
"""Larger than the difference between two waits for an idle device."""
_OTHER_STREAM_SHARE = 0.2
_PAUSE_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Pace:
    """How long graphs are replayed before the first sample, until the clocks have settled, and how long the slices of
    all placements together are."""

    warm_up_ns: int
    slice_ns: int


USUAL = Pace(50_000_000, SLICE_NS)
PAIRED = Pace(10_000_000, 10_000_000)
"""For slices that take turns with those of another child: a device that both have used is warm, and what changes slowly
changes both."""


class GraphTimer:
    """Replays of CUDA graphs, one per memory placement, each slice on the next placement.

    hot: use one graph over one input set. plan: what the timer follows, by default its own. launches: kernels, copies
    and fills of a captured call, None where the driver cannot be asked. replay_times: what `verify` saw, None where the
    numbers of the inputs cannot change. pace: see Pace; `hot` needs no warm-up, because it is timed after `graph`.

    No host code runs in a replay, but what was captured may leave out work that an earlier launch has done. `verify`
    therefore holds replays on new numbers against replays on repeated ones: see guards/agreement.py. A variant that
    returned a cached result while it was captured fails on the fresh inputs of `verify`.
    """

    replay_times: ReplayTimes | None = None
    _has_testified = False

    def __init__(
        self,
        problem: CaseProblem,
        seed: int,
        placements: int,
        *,
        hot: bool = False,
        plan: GraphPlan | None = None,
        pace: Pace = USUAL,
    ) -> None:
        self.plan = plan or plan_graphs(problem, seed, placements, hot=hot, pace=pace)
        self.placements, sets, launches = self.plan.placements, self.plan.sets, self.plan.launches
        scatter = random.Random(seed)
        self._graphs = [_Placement(problem, seed + index, sets, launches, scatter) for index in range(self.placements)]
        self.launches = self._graphs[0].work
        self._turn = 0
        self.warm_up(0 if hot else pace.warm_up_ns)

    def take(self, wait_ns: float = 0.0) -> list[float]:
        """Takes one slice: nanoseconds per launch of up to ten replays of one placement.

        wait_ns: how much longer every launch is made. The slices of all placements together take as long as the pace
        says, or a replay each.
        """
        expect_nothing_set_aside()
        return self._next().replay(self.plan.replays, wait_ns)

    def take_between(self, before: Callable[[], Any], after: Callable[[], Any]) -> int:
        """Replays one slice without events between the work of `before` and `after`; returns the number of launches."""
        graph = self._next()
        graph.replay_between(self.plan.replays, before, after)
        return self.plan.replays * graph.launches

    def queue(self, replays: int) -> torch.cuda.Event:
        """Queues replays of the first placement; returns an event at their end without waiting for it."""
        return self._graphs[0].queue(replays)

    def testify(self) -> None:
        """Raises WrongResultError when replays leave out work. Nothing else may use the device meanwhile."""
        self._has_testified = True
        self.replay_times = self._graphs[0].expect_work_in_replays()

    def verify(self) -> None:
        """Raises WrongResultError when replays leave out work, or one more replay is wrong. After `testify` others may
        use the device meanwhile."""
        if not self._has_testified:
            self.testify()
        self.verify_results()

    def verify_results(self) -> None:
        """Raises WrongResultError when one more replay, on fresh inputs, is wrong.

        Of the first placement that looks at three sets, of each other one at a set chosen by chance.
        """
        for graph in self._graphs:
            captured_calls = list(graph.rotation.calls)
            # Of the other placements a set that no code can foresee: each takes a run of the reference.
            chosen = [] if graph is self._graphs[0] else [int.from_bytes(urandom(4)) % len(graph.rotation.sets)]
            graph.rotation.renew(chosen)
            if graph.rotation.calls != captured_calls:
                raise CaptureError("the variant prepares arguments of other shapes for other inputs")
            # Without this, a graph that writes nothing would still hold the right results of its last replay.
            graph.rotation.wipe(graph.results, chosen)
            graph.replay(1)
            graph.rotation.verify(graph.results, chosen)

    def _next(self) -> _Placement:
        self._turn += 1
        return self._graphs[(self._turn - 1) % self.placements]

    def warm_up(self, budget_ns: int) -> None:
        """Replays for `budget_ns`, until the clocks have settled."""
        end = perf_counter_ns() + budget_ns
        first, *others = self._graphs
        if first.replay_by_host_clock() * first.launches < SLICE_NS:
            first.replay(1)
        for graph in others:
            graph.replay_by_host_clock()
            graph.take_lead_of(first)
        while perf_counter_ns() < end:
            for graph in self._graphs:
                graph.replay(1)


class _Placement:
    """One CUDA graph over input sets at random distances in memory, called in random order."""

    def __init__(self, problem: CaseProblem, seed: int, sets: int, launches: int, scatter: random.Random) -> None:
        self.rotation = Rotation(problem, seed, sets, scatter)
        self.launches = launches
        self._lead = Lead(_REPLAY_LAUNCH_NS)
        self._order = scatter.sample(range(sets), sets)
        for call in self.rotation.calls[:2]:
            call()
        with problem.turns.use(LaneUse.HOST):
            _expect_capturable(problem, self.rotation.calls[0])
            captured = capture(self._calls() * (launches // sets), problem.turns.pause, count=True)
        self._graph, self.results = captured.graph, captured.results
        expect_equal_launches(captured.added, sets)
        self._added = captured.added[:sets]
        self.work = None if captured.work is None else captured.work / launches

    def replay_by_host_clock(self) -> float:
        """Nanoseconds per launch of one replay, with its launch and the wait. A graph's first launch takes longest."""
        begin = perf_counter_ns()
        self._graph.replay()
        torch.cuda.synchronize()
        return (perf_counter_ns() - begin) / self.launches

    def take_lead_of(self, other: _Placement) -> None:
        """Begins with a lead that was long enough for the graph of the same calls on other buffers."""
        self._lead = Lead(other._lead.nanoseconds)

    def replay(self, count: int, wait_ns: float = 0.0) -> list[float]:
        """Nanoseconds per launch of each of `count` replays in a row; wait_ns: what a launch takes longer."""
        events = [new_event() for _ in range(count + 1)]
        for _ in self._lead.tries(events[0]):
            events[0].record()
            for event in events[1:]:
                self._graph.replay()
                if wait_ns:
                    # One wait for all launches: a kernel that waits takes a microsecond at least.
                    sleep(wait_ns * self.launches)
                event.record()
        events[-1].synchronize()
        return [elapsed_ns(a, b) / self.launches for a, b in pairwise(events)]

    def expect_work_in_replays(self) -> ReplayTimes | None:
        """Raises WrongResultError when launches leave out work on numbers or buffers that they have seen.

        Replays a graph that calls every set once, on new numbers each time, and verifies the last of these replays.
        None where the numbers of the inputs cannot change in place, or memory does not suffice for the second graph.
        """
        sets = len(self._order)
        if not self.rotation.can_roll:
            return None
        captured_calls, turns = list(self.rotation.calls), self.rotation.problem.turns
        graph, results = self._graph, self.results
        if self.launches > sets:
            for call in self.rotation.calls[:2]:
                call()
            try:
                with turns.use(LaneUse.HOST):
                    captured = capture(self._calls(), turns.pause, count=True)
                graph, results = captured.graph, captured.results
                expect_equal_launches([*self._added, *captured.added], sets)
            except torch.OutOfMemoryError:
                return None

        # The first launch of a graph takes the host longer than those that are timed.
        launch_ns = min(_launch(graph) for _ in range(2))
        lead = Lead(max(_SINGLE_LEAD_NS, _LAUNCH_SLACK * launch_ns), LONGEST_SURE_LEAD_NS)

        def new() -> float:
            self.rotation.roll()
            return _replay_once(graph, lead)

        def repeated() -> float:
            self.rotation.rewrite()
            return _replay_once(graph, lead)

        times = expect_work_in_replays(new, repeated, lambda: sets * min(self.replay(1)))
        self.rotation.roll()
        if self.rotation.calls != captured_calls:
            raise CaptureError("the variant prepares arguments of other shapes for other inputs")
        self.rotation.wipe(results)
        _replay_once(graph, lead)
        self.rotation.verify(results)
        return times

    def _calls(self) -> list[tuple[int, Callable[[], Any]]]:
        return [(index, self.rotation.calls[index]) for index in self._order]

    def replay_between(self, count: int, before: Callable[[], Any], after: Callable[[], Any]) -> None:
        """Queues `before`, `count` replays and `after` without a gap."""
        awake = new_event()
        for _ in Lead(self._lead.nanoseconds, LONGEST_SURE_LEAD_NS).tries(awake):
            awake.record()
            before()
            for _ in range(count):
                self._graph.replay()
            after()

    def queue(self, count: int) -> torch.cuda.Event:
        """Queues `count` replays; returns an event at their end."""
        for _ in range(count):
            self._graph.replay()
        end = new_event()
        end.record()
        return end


class CudaColdTimer:
    """Single eager calls on data that is not in the L2, timed by events."""

    placements = 1
    _longer_ns = 0.0
    _has_testified = False

    def __init__(self, problem: CaseProblem, seed: int) -> None:
        measured = measure_set(problem, seed)
        affordable = affordable_sets(problem, measured.bytes)
        sets = min(_EAGER_SETS, sets_in_one_walk(measured.call_ns), measured.prepared_sets)
        expect_room(problem, is_enough=sets <= affordable)
        self._rotation = Rotation(problem, seed, max(1, min(sets, affordable)))
        self._results: dict[int, Any] = {}
        self._other_stream_ns: list[float] = []
        self._warm_up()

    def take(self, wait_ns: float = 0.0) -> list[float]:
        """Takes one slice: nanoseconds of at least one call, and of at most ten within 20 ms.

        wait_ns: how much longer every call is made.
        """
        expect_nothing_set_aside()
        self._longer_ns = wait_ns
        self._rotation.roll()
        return self._slice()

    def testify(self) -> None:
        """Raises WrongResultError when one more slice, on fresh inputs, leaves work on another stream. Nothing else may
        use the device meanwhile."""
        self._has_testified = True
        self._rotation.renew()
        self._expect_no_other_stream(self._slice(spoil=True))

    def verify(self) -> None:
        """Raises WrongResultError when that slice leaves work on another stream or is wrong. After `testify` others may
        use the device meanwhile."""
        if not self._has_testified:
            self.testify()
        self._rotation.verify(self._results)
        self._rotation.verify_in_a_row()

    def _warm_up(self) -> None:
        device = self._rotation.problem.device
        size = L2_COVERED * torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = torch.empty(size, dtype=torch.uint8, device=device)
        self._lead = Lead(2 * measure_queueing(self._rotation.calls))

    def _slice(self, *, spoil: bool = False) -> list[float]:
        # Results of the slice before belong to other inputs.
        self._results.clear()
        samples: list[float] = []
        kept: tuple[float, ...] = ()
        end = perf_counter_ns() + SLICE_NS
        while not samples or (len(samples) < _EAGER_SAMPLES and perf_counter_ns() < end):
            (call,), index = self._rotation.batch(1)
            elapsed, result = self._sample(call)
            expect_unaltered(samples, kept)
            samples.append(elapsed)
            kept = (*kept, elapsed)
            self._results[index] = self._rotation.spoil(result) if spoil else result
        return samples

    def _sample(self, call: Callable[[], Any]) -> tuple[float, Any]:
        start, end = new_event(), new_event()
        result = None
        for _ in self._lead.tries(start):
            self._flush.zero_()
            start.record()
            result = call()
            if self._longer_ns:
                sleep(self._longer_ns)
            end.record()
        end.synchronize()
        # The second wait finds the device idle, so it takes host time only, which varies in a virtual machine.
        self._other_stream_ns.append(_wait_ns() - _wait_ns())
        return elapsed_ns(start, end), result

    def _expect_no_other_stream(self, samples: list[float]) -> None:
        """Raises WrongResultError when the device works on after the current stream has finished."""
        extra_ns = median(self._other_stream_ns) if self._other_stream_ns else 0
        if extra_ns <= max(_NOTICEABLE_NS, _OTHER_STREAM_SHARE * median(samples)):
            return
        # Freeing memory takes host time in the same wait; a pause before it removes device work but not host work.
        if self._wait_after_pause_ns(extra_ns) < extra_ns / 2:
            raise WrongResultError(
                f"The variant runs work on another stream: the device works {extra_ns / 1e3:.0f} µs longer than the "
                "timed stream",
                Fault.OTHER_STREAM,
            )

    def _wait_after_pause_ns(self, work_ns: float) -> float:
        """The time of the same wait after a pause in which device work of `work_ns` has time to finish."""
        waits = []
        for _ in range(_EAGER_SAMPLES):
            (call,), _index = self._rotation.batch(1)
            call()
            torch.cuda.current_stream().synchronize()
            sleep_on_host(max(_PAUSE_SECONDS, 4 * work_ns / 1e9))
            waits.append(_wait_ns() - _wait_ns())
        return median(waits)


class CallTimer(CudaColdTimer):
    """Eager calls by the host's clock, from the call until the device is idle."""

    def _warm_up(self) -> None:
        for call in self._rotation.calls:
            call()

    def _sample(self, call: Callable[[], Any]) -> tuple[float, Any]:
        # The copies that moved the numbers on may still run.
        self._rotation.problem.synchronize()
        begin = perf_counter_ns()
        result = call()
        self._rotation.problem.synchronize()
        return float(perf_counter_ns() - begin), result


def open_timer(
    problem: CaseProblem,
    seed: int,
    metric: str,
    placements: int,
    plan: GraphPlan | None = None,
    pace: Pace = USUAL,
) -> GraphTimer | CudaColdTimer:
    """A warmed-up timer for `graph`, `hot`, `cold` or `call`; CaptureError when a graph cannot capture the variant."""
    if metric in ("graph", "hot"):
        return GraphTimer(problem, seed, placements, hot=metric == "hot", plan=plan, pace=pace)
    return (CudaColdTimer if metric == "cold" else CallTimer)(problem, seed)


def _launch(graph: torch.cuda.CUDAGraph) -> int:
    """Replays once on an idle device; returns the nanoseconds that the host took to launch that."""
    torch.cuda.synchronize()
    start = perf_counter_ns()
    graph.replay()
    return perf_counter_ns() - start


def _replay_once(graph: torch.cuda.CUDAGraph, lead: Lead) -> float:
    """Nanoseconds of one replay.

    It is not repeated where the host was late, since a second replay sees no new numbers; the next lead is longer.
    """
    start, end = new_event(), new_event()
    lead.sleep()
    start.record()
    graph.replay()
    end.record()
    lead.lengthen_where_late(start)
    end.synchronize()
    return elapsed_ns(start, end)


def _wait_ns() -> int:
    """Nanoseconds until the whole device is idle."""
    start = perf_counter_ns()
    torch.cuda.synchronize()
    return perf_counter_ns() - start


def measure_queueing(calls: list[Callable[[], Any]]) -> int:
    """Median nanoseconds that the host takes to queue one call."""
    times: list[int] = []
    begin = perf_counter_ns()
    for call in calls * 2:
        if len(times) >= len(calls) and perf_counter_ns() - begin > _QUEUE_NS:
            break
        torch.cuda.synchronize()
        start = perf_counter_ns()
        call()
        times.append(perf_counter_ns() - start)
    torch.cuda.synchronize()
    return sorted(times)[len(times) // 2]


L2_COVERED = 3
"""How many times the sets cover the L2, where calls are fast enough."""
_MOST_SETS = 256
_WARM_SETS = 64
"""Enough where even the most sets fill a quarter of the L2 at most: data is as warm, and each set costs a capture in
every placement. With half of it, which is one of the two partitions of an H200, times differed."""
_WALK_NS = 200_000_000
"""The longest walk through all sets, roughly.

Slow calls therefore get few sets; reading a set from memory takes less than a thousandth of such a call.
"""
_WALKS_NS = 400_000_000
"""The longest walk through the sets of all placements together, roughly.

It limits calls of more than 0.4 ms. Where they launch many kernels, their places in memory average out within one
placement.
"""
_MEMORY_SHARE = 0.4
_SIDES_SHARE = 0.6
"""Of the free memory, for the sets of all sides of a comparison together."""
_UNLIMITED = 2**62
_ENOUGH_SETS = 1024
"""In all placements together. The more sets, the less it matters where each of them lies, and each costs a capture."""
_FEWEST_PLACEMENTS = 2
_PREPARING_NS = 400_000_000
"""The longest preparing of all sets of eager calls, roughly: whenever their numbers move on, each is prepared anew. A
variant that captures a CUDA graph for its calls takes a tenth of a second for each.
"""
_TUNING_NS = 100_000_000
"""By so much longer a first call may have tuned itself: Triton times each configuration for 125 ms."""


@dataclass(frozen=True, slots=True)
class MeasuredInput:
    """bytes: that one set with its result takes. call_ns: of one eager call, at least 1000. first_ns: of the first.
    prepare_ns: that the variant prepares for it. device_ns: of a replay of one call, at least 1000; None where no graph
    captures it, and obstacle says why."""

    bytes: int
    call_ns: int
    first_ns: int
    prepare_ns: int
    device_ns: int | None = None
    obstacle: str = ""

    @property
    def may_have_tuned(self) -> bool:
        """Whether the first call may have timed configurations to choose one, which needs a device of its own."""
        return self.first_ns - self.call_ns > _TUNING_NS

    @property
    def prepared_sets(self) -> int:
        """How many sets may be prepared for eager calls."""
        return max(2, _PREPARING_NS // max(1, self.prepare_ns))


@lru_cache(maxsize=1)
def measure_set(problem: CaseProblem, seed: int) -> MeasuredInput:
    """Measures the time and memory of the variant for one set of inputs, once for all timers of a problem. The process
    should not have called the variant on this case before."""
    device = problem.device
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    data = problem.data(seed)
    call = problem.call(data)
    begin = perf_counter_ns()
    result = call()
    torch.cuda.synchronize(device)
    first_ns = perf_counter_ns() - begin
    set_bytes = torch.cuda.memory_allocated(device) - before
    times = []
    for _ in range(3):
        start = perf_counter_ns()
        result = call()
        torch.cuda.synchronize(device)
        times.append(perf_counter_ns() - start)
    del result
    start = perf_counter_ns()
    problem.prepared(data)
    torch.cuda.synchronize(device)
    prepare_ns = perf_counter_ns() - start
    device_ns, obstacle = None, ""
    try:
        device_ns = _time_replay(problem, call)
    except CaptureError as error:
        obstacle = str(error)
    # A set in host memory must not count as 0 bytes.
    set_bytes = max(set_bytes, data.nbytes, 1)
    return MeasuredInput(set_bytes, max(min(times), 1000), first_ns, prepare_ns, device_ns, obstacle)


def _time_replay(problem: CaseProblem, call: Callable[[], Any]) -> int:
    """Nanoseconds of a replay of one call; CaptureError where no graph captures it."""
    with problem.turns.use(LaneUse.HOST):
        _expect_capturable(problem, call)
        captured = capture([(0, call)])
    lead = Lead(_SINGLE_LEAD_NS)
    return max(1000, round(min(_replay_once(captured.graph, lead) for _ in range(3))))


def _expect_capturable(problem: CaseProblem, call: Callable[[], Any]) -> None:
    """Raises CaptureError where a capture does not see what the variant launches."""
    if problem.uses_default_stream is None:
        problem.uses_default_stream = launches_on_default_stream(call, problem.device)
    if problem.uses_default_stream:
        raise CaptureError("it launches on CUDA's default stream, which no capture sees")


def plan_graphs(
    problem: CaseProblem,
    seed: int,
    placements: int,
    *,
    hot: bool = False,
    pace: Pace = USUAL,
    sides: int = 1,
) -> GraphPlan:
    """The plan of `graph` or `hot` for this variant. sides: how many plan alike and share the memory.

    Raises CaptureError where no graph captures the variant, and Refusal where the sets take more memory than there is.
    """
    measured = measure_set(problem, seed)
    if measured.device_ns is None:
        raise CaptureError(measured.obstacle)
    device_ns, host_ns = measured.device_ns, max(1, measured.call_ns - measured.device_ns)
    sets, placements = (1, 1) if hot else plan_sets(problem, measured.bytes, device_ns, placements, sides)
    sets, placements, launches = choose_launches(sets, placements, device_ns, host_ns)
    replays = max(1, min(_REPLAYS, pace.slice_ns // (placements * launches * device_ns)))
    return GraphPlan(sets, placements, launches, replays, plan_eager_calls(problem, measured, device_ns, sides))


def choose_launches(sets: int, placements: int, device_ns: int, host_ns: int) -> tuple[int, int, int]:
    """(sets per placement, placements, launches per graph) of calls with such times: fewer than these sets and
    placements only where captures would take long."""
    captures = max(2, _HOST_WALK_NS // host_ns)
    sets = min(sets, captures)
    launches = sets * max(1, round(min(_MOST_LAUNCHES, captures, _GRAPH_NS / device_ns) / sets))
    return sets, min(placements, max(_FEWEST_PLACEMENTS, _CAPTURES_NS // (launches * host_ns))), launches


def plan_eager_calls(problem: CaseProblem, measured: MeasuredInput, device_ns: int, sides: int = 1) -> int:
    """How many eager calls follow each other for `launch`, each on a set of its own; 0 where a call takes too long."""
    if device_ns > _LONGEST_EAGER_CALL_NS:
        return 0
    affordable = min(measured.prepared_sets, affordable_sets(problem, measured.bytes, sides))
    return max(1, min(_EAGER_CALLS, _EAGER_CALLS_NS // device_ns, affordable))


def plan_sets(problem: CaseProblem, set_bytes: int, device_ns: int, placements: int, sides: int = 1) -> tuple[int, int]:
    """(sets per placement, placements): enough sets to exceed the L2, few enough for memory and time.

    Raises Refusal where that takes more memory than there is for each lane.
    """
    l2_bytes = torch.cuda.get_device_properties(problem.device).L2_cache_size
    planned = choose_sets(l2_bytes, affordable_sets(problem, set_bytes, sides), set_bytes, device_ns, placements)
    expect_room(problem, is_enough=planned == choose_sets(l2_bytes, _UNLIMITED, set_bytes, device_ns, placements))
    return planned


def expect_room(problem: CaseProblem, *, is_enough: bool) -> None:
    """Raises Refusal unless the memory of a lane is enough: what is timed must not depend on the number of lanes."""
    if problem.turns.are_taken and not is_enough:
        raise Refusal(Status.OUT_OF_MEMORY, "The input sets take more memory than there is for each lane")


def choose_sets(l2_bytes: int, affordable: int, set_bytes: int, device_ns: int, placements: int) -> tuple[int, int]:
    """(sets per placement, placements) with memory for `affordable` sets.

    At least two sets where memory allows, and where calls are fast enough so many that they cover the L2 three times.
    """
    covering = max(2, math.ceil(L2_COVERED * l2_bytes / set_bytes) + 1)
    most = _WARM_SETS if 4 * _MOST_SETS * set_bytes <= l2_bytes else _MOST_SETS
    sets = max(1, min(covering, most, sets_in_one_walk(device_ns), affordable))
    enough = max(_FEWEST_PLACEMENTS, _ENOUGH_SETS // sets)
    return sets, max(1, min(placements, enough, affordable // sets, _WALKS_NS // (sets * device_ns)))


def sets_in_one_walk(call_ns: int) -> int:
    return max(2, _WALK_NS // call_ns)


def affordable_sets(problem: CaseProblem, set_bytes: int, sides: int = 1) -> int:
    """The number of sets that leaves most of the free memory free; in several lanes, most of each lane's memory. sides:
    processes that take so many sets each."""
    device = problem.device
    free, total = torch.cuda.mem_get_info(device)
    if problem.turns.are_taken:
        return int(total * _MEMORY_SHARE / problem.turns.lanes / set_bytes)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free * (_MEMORY_SHARE if sides == 1 else _SIDES_SHARE / sides) / set_bytes)


_LONGEST_LEAD_NS = 4_000_000
LONGEST_SURE_LEAD_NS = 32_000_000
"""Where a few replays are timed or counted, each should be free of gaps; of many samples the median is."""
_CYCLES_PER_NS = 2.0
"""NVIDIA GPUs clock at about 2 GHz at most, so a sleep lasts at least about as long as requested."""
_Event = torch.cuda.Event
"""Bound before code of the commit can replace the class."""


def new_event() -> torch.cuda.Event:
    return _Event(enable_timing=True)  # type: ignore[no-untyped-call]


def elapsed_ns(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    """Nanoseconds of device time between two events that have both completed."""
    return float(start.elapsed_time(end)) * 1e6


def sleep(nanoseconds: float) -> None:
    """Queues a kernel that keeps the current stream busy for at least about so long."""
    torch.cuda._sleep(int(nanoseconds * _CYCLES_PER_NS))  # type: ignore[no-untyped-call]


class Lead:
    """Puts the device to sleep while the host queues the timed work, so that no gap between launches is timed.

    The time that a shared host needs for queueing varies, so an event at the start of the work shows whether it was
    fast enough. nanoseconds: of the next sleep. longest_ns: after a sleep of that length it is timed all the same.
    """

    def __init__(self, nanoseconds: float, longest_ns: float = _LONGEST_LEAD_NS) -> None:
        self.nanoseconds = nanoseconds
        self._longest_ns = longest_ns

    def tries(self, awake: torch.cuda.Event) -> Iterator[None]:
        """Yields once, and again after a longer sleep as long as the device wakes before the caller has queued all.

        awake: the event that the caller must record first.
        """
        while True:
            self.sleep()
            yield
            if not self.lengthen_where_late(awake):
                return

    def sleep(self) -> None:
        sleep(self.nanoseconds)

    def lengthen_where_late(self, awake: torch.cuda.Event) -> bool:
        """Whether the device has woken already and sleeps longer the next time; for the caller who has queued all."""
        if not awake.query() or self.nanoseconds >= self._longest_ns:  # type: ignore[no-untyped-call]
            return False
        self.nanoseconds = min(2 * self.nanoseconds, self._longest_ns)
        return True
