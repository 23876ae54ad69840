"""Times what an NVIDIA GPU itself is busy with: the sum of the durations of all kernels, copies and fills of a call.

CUPTI stamps start and end of each on the device, so neither launches nor gaps between kernels nor events are in it,
however short the kernel is; a difference of two timings would carry the noise of both. Switching CUPTI on takes tens of
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
"""What newer profilers list as activity of the device though nothing runs."""


class KernelTimer:
    """Eager calls on input sets that cover three times the L2, recorded by the profiler."""

    placements = 1

    def __init__(self, problem: CaseProblem, seed: int) -> None:
        set_bytes, call_ns = measure_set(problem, seed)
        sets, _ = plan_sets(problem.device, set_bytes, call_ns, 1)
        self._rotation = Rotation(problem, seed, sets)
        self._kept: dict[int, Any] = {}
        self._count = max(1, min(_MOST_CALLS, SLICE_NS // call_ns))
        # The first session sets CUPTI up.
        self._session()

    def take(self) -> list[float]:
        """One slice: nanoseconds of each of up to 64 calls; one mean where calls differ in their number of kernels."""
        self._rotation.roll()
        return self._session()

    def verify(self) -> None:
        """Raises WrongResultError when a slice like the others, on numbers never seen, computes something wrong."""
        self._rotation.renew()
        self._session()
        self._rotation.verify(self._kept)

    def _session(self) -> list[float]:
        # Results kept from before belong to other numbers.
        self._kept.clear()
        durations = busy_ns(self._run)
        if not durations:
            raise NoMetricError("the profiler saw nothing run on the device")
        return split(durations, self._count)

    def _run(self) -> None:
        for _ in range(self._count):
            (call,), index = self._rotation.batch(1)
            self._kept[index] = call()


def busy_ns(run: Callable[[], Any]) -> list[int]:
    """How long each kernel, copy and fill of `run` kept the device busy, in the order of their starts."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        run()
        torch.cuda.synchronize()
    return [event.duration_ns() for event in _device_work(recorded)]


def split(durations: list[int], calls: int) -> list[float]:
    """Nanoseconds per call from durations in the order of their starts; one mean where they do not fall into equal
    parts."""
    if not durations or len(durations) % calls:
        return [sum(durations) / calls]
    each = len(durations) // calls
    return [float(sum(durations[start : start + each])) for start in range(0, len(durations), each)]


def _device_work(recorded: profile) -> list[Any]:
    """Everything that ran on the device, in the order of its start."""
    assert recorded.profiler is not None
    results = recorded.profiler.kineto_results
    assert results is not None
    found = [
        event
        for event in results.events()
        if event.device_type() == DeviceType.CUDA
        and not event.is_user_annotation()
        and not event.name().startswith(_NO_WORK)
    ]
    return sorted(found, key=lambda event: event.start_ns())
