"""Times the busy time of an NVIDIA GPU: the sum of the durations of all kernels, copies and fills of a call.

CUPTI stamps the start and end of each on the device, so launches, gaps between kernels and events are not included,
however short the kernel is. A difference of two timings would have the noise of both. Starting CUPTI takes tens of
milliseconds of host time, so a slice is one session over many calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from .problem import CaseProblem
from .rotation import Rotation
from .timer_cuda import SLICE_NS, NoMetricError, measure_set, plan_sets

_MOST_CALLS = 64
_NO_WORK = ("Context Sync", "Stream Sync", "Event Sync", "Stream Wait", "Context Synchronize", "Stream Synchronize")
"""Newer profilers list these as device activity, although nothing runs."""


class KernelTimer:
    """Eager calls on input sets that cover three times the L2, recorded by the profiler."""

    placements = 1

    def __init__(self, problem: CaseProblem, seed: int) -> None:
        set_bytes, call_ns = measure_set(problem, seed)
        sets, _ = plan_sets(problem.device, set_bytes, call_ns, 1)
        self._rotation = Rotation(problem, seed, sets)
        self._results: dict[int, Any] = {}
        self._count = max(1, min(_MOST_CALLS, SLICE_NS // call_ns))
        # The first session initialises CUPTI.
        self._session()

    def take(self) -> list[float]:
        """Takes one slice: nanoseconds of up to 64 calls, or their mean when they launch unequal numbers of kernels."""
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

        durations = busy_ns(run)
        if not durations:
            raise NoMetricError("the profiler recorded no work on the device")
        return split(durations, self._count)


def busy_ns(run: Callable[[], Any]) -> list[int]:
    """Nanoseconds of each kernel, copy and fill of `run`, in the order of their starts."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        run()
        torch.cuda.synchronize()
    assert recorded.profiler is not None
    results = recorded.profiler.kineto_results
    assert results is not None
    device_work = [
        event
        for event in results.events()
        if event.device_type() == DeviceType.CUDA
        and not event.is_user_annotation()
        and not event.name().startswith(_NO_WORK)
    ]
    return [event.duration_ns() for event in sorted(device_work, key=lambda event: event.start_ns())]


def split(durations: list[int], calls: int) -> list[float]:
    """Nanoseconds per call, from durations in the order of their starts; the mean when calls have unequal numbers."""
    if not durations or len(durations) % calls:
        return [sum(durations) / calls]
    each = len(durations) // calls
    return [float(sum(durations[start : start + each])) for start in range(0, len(durations), each)]
