"""Times calls on an NVIDIA GPU with device events.

`graph`: CUDA graphs of launches that walk through input sets covering more than three times the L2, in several memory
placements; replays follow each other without a gap, so launch cost is not in it and data is cold. `cold`: one eager
call after the L2 was overwritten, queued behind a sleeping kernel so that the host is ahead. `hot`: a graph as before
of launches on one and the same input set, which stays in the L2 if it fits. `call`: the host's time from calling to a
finished device. Outputs of a graph stay in its own memory, so the last replay's can be verified.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from statistics import median
from time import perf_counter_ns
from time import sleep as sleep_on_host
from typing import Any

import torch

from .failures import WrongResultError
from .problem import CaseProblem
from .rotation import Rotation, no_collection, wipe

SLICE_NS = 20_000_000
_MOST_SETS = 256
_EAGER_SETS = 8
_L2_COVERED = 3
_WALK_NS = 200_000_000
"""One walk through the sets takes at most about this long.

Where that makes them few, reading one from memory is not a thousandth of a call.
"""
_WALKS_NS = 1_000_000_000
"""The walks of all placements together do."""
_MEMORY_SHARE = 0.4
_REPLAYS = 10
_WARM_UP_NS = 50_000_000
_GRAPH_NS = 2_000_000
_MOST_LAUNCHES = 200
_EAGER_SAMPLES = 10
_REPLAY_LAUNCH_NS = 30_000
_LONGEST_LEAD_NS = 4_000_000
_NOTICEABLE_NS = 50_000
"""Two waits for an idle device differ by less than this."""
_BESIDE_SHARE = 0.2
_PAUSE_SECONDS = 0.002
_UNJOINED = "unjoined work"
_CYCLES_PER_NS = 2.0
"""No NVIDIA GPU clocks above 2 GHz by much, so a sleep lasts at least about as long as asked for."""


_Event = torch.cuda.Event
"""Bound before the commit's own code can put another class in its place."""


class NoMetricError(Exception):
    """A metric cannot be had of this variant or on this machine; the message says why."""


class CaptureError(NoMetricError):
    """A variant cannot be captured in a CUDA graph; the message is CUDA's."""


class Lead:
    """Lets the device sleep while the host queues what is timed, so that no gap between launches is timed with it.

    How long a host that others use takes for that changes from moment to moment, so the event at its beginning tells
    whether it was in time.
    """

    def __init__(self, nanoseconds: float) -> None:
        self._ns = nanoseconds

    def tries(self, awake: torch.cuda.Event) -> Iterator[None]:
        """Once, or again after a longer sleep where the caller had not queued everything, `awake` first, when the
        device woke."""
        while True:
            sleep(self._ns)
            yield
            late = awake.query()  # type: ignore[no-untyped-call]
            if not late or self._ns >= _LONGEST_LEAD_NS:
                return
            self._ns = min(2 * self._ns, _LONGEST_LEAD_NS)


class GraphTimer:
    """Replays of CUDA graphs, one per memory placement, each slice on the next placement.

    `hot`: one graph over one input set.

    No host code runs in a replay, so nothing can be kept between two; the new numbers of `verify` are what a variant
    fails on that returned something kept when it was captured.
    """

    def __init__(self, problem: CaseProblem, seed: int, placements: int, *, hot: bool = False) -> None:
        set_bytes, call_ns = measure_set(problem, seed)
        sets, self.placements = (1, 1) if hot else plan_sets(problem.device, set_bytes, call_ns, placements)
        launches = sets * max(1, round(min(_MOST_LAUNCHES, _GRAPH_NS / call_ns) / sets))
        scatter = random.Random(seed)
        self._graphs = [_Placement(problem, seed + index, sets, launches, scatter) for index in range(self.placements)]
        self._turn = 0
        # The clocks have settled by the time that a second metric is taken.
        replay_ns = self._warm_up(0 if hot else _WARM_UP_NS) * launches
        self._replays = max(1, min(_REPLAYS, int(SLICE_NS / self.placements / max(1.0, replay_ns))))

    def take(self) -> list[float]:
        """One slice: nanoseconds per launch of up to ten replays of one placement, all placements' slices together some
        20 ms."""
        return self._next().replay(self._replays)

    def take_between(self, before: Callable[[], Any], after: Callable[[], Any]) -> int:
        """A slice without events, queued between `before` and `after`; returns how many launches."""
        graph = self._next()
        graph.replay_between(self._replays, before, after)
        return self._replays * graph.launches

    def verify(self) -> None:
        """Raises WrongResultError when a replay like the others, on numbers never seen, leaves something wrong."""
        for graph in self._graphs:
            captured = list(graph.rotation.calls)
            graph.rotation.renew()
            if graph.rotation.calls != captured:
                raise CaptureError("what it prepares takes another shape for other numbers")
            # A graph that writes nothing must not find the answers of its last replay.
            wipe(graph.kept, graph.rotation.sets)
            graph.replay(1)
            graph.rotation.verify(graph.kept)

    def _next(self) -> _Placement:
        self._turn += 1
        return self._graphs[(self._turn - 1) % self.placements]

    def _warm_up(self, budget_ns: int) -> float:
        """Replays until the clocks have settled; returns nanoseconds per launch."""
        per_launch = 0.0
        end = perf_counter_ns() + budget_ns
        while not per_launch or perf_counter_ns() < end:
            for graph in self._graphs:
                (per_launch,) = graph.replay(1)
        return per_launch


class _Placement:
    """One CUDA graph over input sets scattered in memory in its own way, called in an order of its own."""

    def __init__(self, problem: CaseProblem, seed: int, sets: int, launches: int, scatter: random.Random) -> None:
        self.rotation = Rotation(problem, seed, sets, scatter)
        self.launches = launches
        self.kept: dict[int, Any] = {}
        self._lead = Lead(_REPLAY_LAUNCH_NS)
        order = scatter.sample(range(sets), sets)
        for call in self.rotation.calls[:2]:
            call()
        self._graph = _capture([(index, self.rotation.calls[index]) for index in order] * (launches // sets), self.kept)

    def replay(self, count: int) -> list[float]:
        """Nanoseconds per launch of `count` replays in a row."""
        events = [new_event() for _ in range(count + 1)]
        for _ in self._lead.tries(events[0]):
            events[0].record()
            for event in events[1:]:
                self._graph.replay()
                event.record()
        events[-1].synchronize()
        return [elapsed_ns(a, b) / self.launches for a, b in pairwise(events)]

    def replay_between(self, count: int, before: Callable[[], Any], after: Callable[[], Any]) -> None:
        """`count` replays in a row between what `before` and `after` queue, without a gap."""
        awake = new_event()
        for _ in self._lead.tries(awake):
            awake.record()
            before()
            for _ in range(count):
                self._graph.replay()
            after()


class CudaColdTimer:
    """Single eager calls on data that the L2 does not hold, timed by events."""

    placements = 1

    def __init__(self, problem: CaseProblem, seed: int) -> None:
        self._rotation = _eager_rotation(problem, seed)
        self._kept: dict[int, Any] = {}
        size = _L2_COVERED * torch.cuda.get_device_properties(problem.device).L2_cache_size
        self._other = torch.empty(size, dtype=torch.uint8, device=problem.device)
        self._lead = Lead(2 * _host_ns(self._rotation.calls))
        self._beside: list[float] = []

    def take(self) -> list[float]:
        """One slice: nanoseconds of up to ten calls; fewer where 20 ms are over before."""
        self._rotation.roll()
        return self._slice()

    def verify(self) -> None:
        """Raises WrongResultError when a slice like the others, on numbers never seen, computes something wrong."""
        self._rotation.renew()
        self._expect_nothing_beside(self._slice(spoil=True))
        self._rotation.verify(self._kept)

    def _slice(self, *, spoil: bool = False) -> list[float]:
        # Results kept from before belong to other numbers.
        self._kept.clear()
        samples: list[float] = []
        end = perf_counter_ns() + SLICE_NS
        while not samples or (len(samples) < _EAGER_SAMPLES and perf_counter_ns() < end):
            (call,), index = self._rotation.batch(1)
            elapsed, result = self._sample(call)
            samples.append(elapsed)
            self._kept[index] = self._rotation.spoil(result) if spoil else result
        return samples

    def _sample(self, call: Callable[[], Any]) -> tuple[float, Any]:
        start, end = new_event(), new_event()
        result = None
        for _ in self._lead.tries(start):
            self._other.zero_()
            start.record()
            result = call()
            end.record()
        end.synchronize()
        # The second wait finds the device idle: what it takes is the host's own, which is slow now and then in a
        # virtual machine.
        self._beside.append(_wait_ns() - _wait_ns())
        return elapsed_ns(start, end), result

    def _expect_nothing_beside(self, samples: list[float]) -> None:
        """Raises WrongResultError when the device works on after the call's own stream is done."""
        longer = median(self._beside) if self._beside else 0
        if longer > max(_NOTICEABLE_NS, _BESIDE_SHARE * median(samples)) and self._after_pause_ns(longer) < longer / 2:
            raise WrongResultError(
                f"the device works {longer / 1e3:.0f} µs longer than the stream that was timed: work runs on another stream"
            )

    def _after_pause_ns(self, longer: float) -> float:
        """What the wait takes once anything that lasts this long has had time to finish: a library may have memory
        freed in it instead."""
        waits = []
        for _ in range(_EAGER_SAMPLES):
            (call,), _index = self._rotation.batch(1)
            call()
            torch.cuda.current_stream().synchronize()
            sleep_on_host(max(_PAUSE_SECONDS, 4 * longer / 1e9))
            waits.append(_wait_ns() - _wait_ns())
        return median(waits)


class CallTimer(CudaColdTimer):
    """Eager calls as a program sees them: from the call to the finished device, by the host's clock."""

    def _sample(self, call: Callable[[], Any]) -> tuple[float, Any]:
        begin = perf_counter_ns()
        result = call()
        self._rotation.problem.synchronize()
        return float(perf_counter_ns() - begin), result


def open_timer(problem: CaseProblem, seed: int, metric: str, placements: int) -> GraphTimer | CudaColdTimer:
    """A warmed-up timer for `graph`, `hot`, `cold` or `call`; CaptureError when the variant cannot be put into a graph."""
    if metric in ("graph", "hot"):
        return GraphTimer(problem, seed, placements, hot=metric == "hot")
    return (CudaColdTimer if metric == "cold" else CallTimer)(problem, seed)


def _wait_ns() -> int:
    """Nanoseconds until the whole device is idle."""
    start = perf_counter_ns()
    torch.cuda.synchronize()
    return perf_counter_ns() - start


def new_event() -> torch.cuda.Event:
    return _Event(enable_timing=True)  # type: ignore[no-untyped-call]


def elapsed_ns(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    """Nanoseconds of device time between two events, the later of which has happened."""
    return float(start.elapsed_time(end)) * 1e6


def _capture(launches: list[tuple[int, Callable[[], Any]]], kept: dict[int, Any]) -> torch.cuda.CUDAGraph:
    """All launches in one graph on the current stream; `kept` gets the last result of each set."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    try:
        # Garbage collected in the middle of a capture would free device memory, which no capture allows.
        with no_collection():
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for index, call in launches:
                    kept[index] = call()
            finally:
                graph.capture_end()
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        kept.clear()
        with suppress(RuntimeError):
            torch.cuda.synchronize()
        # Ending a broken capture fails too; what broke it is the error before.
        reason = str(error.__context__ or error).splitlines()[0]
        if _UNJOINED in reason:
            raise WrongResultError(
                f"it leaves work on another stream that the call's own stream does not wait for ({reason})"
            ) from None
        raise CaptureError(reason) from None
    return graph


def measure_set(problem: CaseProblem, seed: int) -> tuple[int, int]:
    """(bytes that one set with its result takes, nanoseconds of one eager call, at least 1000)."""
    device = problem.device
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    data = problem.data(seed)
    call = problem.call(data)
    result = call()
    torch.cuda.synchronize(device)
    set_bytes = torch.cuda.memory_allocated(device) - before
    times = []
    for _ in range(3):
        start = perf_counter_ns()
        result = call()
        torch.cuda.synchronize(device)
        times.append(perf_counter_ns() - start)
    del result
    # A set that lies on the host must not seem to be nothing.
    return max(set_bytes, data.nbytes, 1), max(min(times), 1000)


def plan_sets(device: torch.device, set_bytes: int, call_ns: int, placements: int) -> tuple[int, int]:
    """(sets per placement, placements): enough to leave the L2 behind, few enough to leave most of the memory free and
    not to take long."""
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    return plan(l2_bytes, _affordable(device, set_bytes), set_bytes, call_ns, placements)


def plan(l2_bytes: int, affordable: int, set_bytes: int, call_ns: int, placements: int) -> tuple[int, int]:
    """As plan_sets, with memory for `affordable` sets: two at least, more than cover the L2 three times where walks are
    short."""
    wanted = min(max(2, math.ceil(_L2_COVERED * l2_bytes / set_bytes) + 1), _MOST_SETS, _in_one_walk(call_ns))
    sets = max(1, min(wanted, affordable))
    return sets, max(1, min(placements, affordable // sets, _WALKS_NS // (sets * call_ns)))


def _in_one_walk(call_ns: int) -> int:
    return max(2, _WALK_NS // call_ns)


def _eager_rotation(problem: CaseProblem, seed: int) -> Rotation:
    set_bytes, call_ns = measure_set(problem, seed)
    return Rotation(
        problem, seed, max(1, min(_EAGER_SETS, _affordable(problem.device, set_bytes), _in_one_walk(call_ns)))
    )


def _affordable(device: torch.device, set_bytes: int) -> int:
    """How many sets leave most of the memory free."""
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free * _MEMORY_SHARE / set_bytes)


def _host_ns(calls: list[Callable[[], Any]]) -> int:
    """How long the host needs to queue one call."""
    times = []
    for call in calls * 2:
        torch.cuda.synchronize()
        start = perf_counter_ns()
        call()
        times.append(perf_counter_ns() - start)
    torch.cuda.synchronize()
    return sorted(times)[len(times) // 2]


def sleep(nanoseconds: float) -> None:
    torch.cuda._sleep(int(nanoseconds * _CYCLES_PER_NS))  # type: ignore[no-untyped-call]
