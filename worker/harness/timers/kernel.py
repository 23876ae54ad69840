"""Times the busy time of an NVIDIA GPU: the sum of the durations of all kernels, copies and fills of a call.

CUPTI stamps the start and end of each on the device, so launches, gaps between kernels and events are not included,
however short the kernel is. A difference of two timings would have the noise of both. A session takes three
milliseconds of host time (H200; the first of a process twenty), so a slice is one session over many calls.

`record_memory` reads the memory that a call allocates from a session of the same profiler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from warpwatch.contract.messages import GraphPlan

from ..guards.l2 import expect_nothing_set_aside
from ..problem import CaseProblem
from .cuda import SLICE_NS, measure_set, plan_eager_calls, plan_sets, sleep
from .graphs import NoMetricError
from .rotation import Rotation

_MOST_CALLS = 64
_NO_WORK = ("Context Sync", "Stream Sync", "Event Sync", "Stream Wait", "Context Synchronize", "Stream Synchronize")
"""Newer profilers list these as device activity, although nothing runs."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A kernel, copy or fill on the device."""

    start_ns: int
    end_ns: int
    stream: int


class KernelTimer:
    """Eager calls on input sets that cover three times the L2, recorded by the profiler.

    launches: kernels, copies and fills of a call. busy_share: time in which at least one of them runs, over the sum of
    their durations. is_parallel: whether a call uses several streams. All three are of the latest slice.
    """

    placements = 1
    launches, busy_share, is_parallel = 0.0, 1.0, False
    _longer_ns = 0.0

    def __init__(self, problem: CaseProblem, seed: int, plan: GraphPlan | None = None) -> None:
        plan = plan or plan_sessions(problem, seed)
        self._rotation = Rotation(problem, seed, plan.sets)
        self._results: dict[int, Any] = {}
        self._count = plan.launches
        _initialise_cupti()

    def take(self, wait_ns: float = 0.0) -> list[float]:
        """Takes one slice: nanoseconds of up to 64 calls, or their mean when they launch unequal numbers of kernels.

        wait_ns: how much longer every call is made.
        """
        expect_nothing_set_aside()
        self._longer_ns = wait_ns
        self._rotation.roll()
        return self._session()

    def verify(self) -> None:
        """Raises WrongResultError when one more slice, on fresh inputs, computes a wrong result."""
        self._rotation.renew()
        self._session()
        self._rotation.verify(self._results)

    def _session(self) -> list[float]:
        # Results of the slice before belong to other inputs.
        self._results.clear()

        def run() -> None:
            for _ in range(self._count):
                (call,), index = self._rotation.batch(1)
                self._results[index] = call()
                if self._longer_ns:
                    sleep(self._longer_ns)

        _, spans = _record(run)
        if not spans:
            raise NoMetricError("the profiler recorded no work on the device")
        durations = [span.end_ns - span.start_ns for span in spans]
        self.launches = len(spans) / self._count
        self.busy_share = union_ns([(span.start_ns, span.end_ns) for span in spans]) / max(1, sum(durations))
        self.is_parallel = len({span.stream for span in spans}) > 1
        return split(durations, self._count)


def plan_sessions(problem: CaseProblem, seed: int, sides: int = 1) -> GraphPlan:
    """The plan of `kernel` for this variant, by the device's time for a call; sides: as of plan_graphs. Only how many
    calls a session has, which changes no time, follows from the host's time as well."""
    measured = measure_set(problem, seed)
    device_ns = measured.device_ns
    if device_ns is None:
        _initialise_cupti()
        device_ns = max(1000, round(busy_ns(problem.call(problem.data(seed)))[0]))
    sets, _ = plan_sets(problem, measured.bytes, device_ns, 1, sides)
    launches = max(1, min(_MOST_CALLS, SLICE_NS // measured.call_ns))
    calls = plan_eager_calls(problem, measured, device_ns, sides)
    return GraphPlan(min(sets, measured.prepared_sets), 1, launches, 1, calls, "kernel")


@cache
def _initialise_cupti() -> None:
    """The first session of a process does, and may not be one whose calls count."""
    _record(lambda: None)


def busy_ns(run: Callable[[], Any]) -> tuple[float, Any]:
    """(nanoseconds of all kernels, copies and fills of `run` together, what it returned)."""
    returned, spans = _record(run)
    return float(sum(span.end_ns - span.start_ns for span in spans)), returned


def _record(run: Callable[[], Any]) -> tuple[Any, list[_Span]]:
    """(what `run` returned; each of its kernels, copies and fills, in the order of their starts)."""
    torch.cuda.synchronize()
    with Profiler(activities=[ProfilerActivity.CUDA]) as recorded:
        returned = run()
        torch.cuda.synchronize()
    spans = [
        _Span(event.start_ns(), event.start_ns() + event.duration_ns(), event.device_resource_id())
        for event in recorded.raw_events()
        if event.device_type() == DeviceType.CUDA
        and not event.is_user_annotation()
        and not event.name().startswith(_NO_WORK)
    ]
    return returned, sorted(spans, key=lambda span: span.start_ns)


def union_ns(spans: Sequence[tuple[float, float]]) -> float:
    """Nanoseconds in which at least one of the spans, (start, end) in the order of their starts, is running."""
    total: float = 0
    reached: float = 0
    for start, end in spans:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def split(durations: list[int], calls: int) -> list[float]:
    """Nanoseconds per call, from durations in the order of their starts; the mean when calls have unequal numbers."""
    if not durations or len(durations) % calls:
        return [sum(durations) / calls]
    each = len(durations) // calls
    return [float(sum(durations[start : start + each])) for start in range(0, len(durations), each)]


_MEMORY = "[memory]"
"""Name of the events of an allocation and of its end."""


class Profiler(profile):
    """torch's profiler, which does not import torch's compilers.

    It asks torch for the attribute `_inductor`, and torch imports what is asked for: 2 s in every child that profiles,
    and templates with compilers from then on. Compilers that nothing has imported captured no CUDA graph.
    """

    def prepare_trace(self) -> None:
        find = torch.__dict__.get("__getattr__")
        if find is None or "torch._inductor" in sys.modules:
            super().prepare_trace()
            return

        def find_other(name: str) -> Any:
            if name == "_inductor":
                raise AttributeError(name)
            return find(name)

        torch.__dict__["__getattr__"] = find_other
        try:
            super().prepare_trace()
        finally:
            torch.__dict__["__getattr__"] = find

    def raw_events(self) -> list[Any]:
        """The recorded events, as torch got them and in no order."""
        assert self.profiler is not None
        results = self.profiler.kineto_results
        assert results is not None
        return list(results.events())


def record_memory(call: Callable[[], Any], device: torch.device) -> tuple[int, int]:
    """Bytes on `device` that torch's allocators hold (at most during a call, when it has returned), above what they
    held before it. Results count, and memory that native code takes elsewhere does not."""
    with Profiler(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    del result
    kind = DeviceType.CUDA if device.type == "cuda" else DeviceType.CPU
    events = [event for event in recorded.raw_events() if event.name() == _MEMORY and event.device_type() == kind]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most, held
