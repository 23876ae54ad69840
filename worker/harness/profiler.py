"""torch's profiler, and the memory that a call allocates by its record."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

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
        """What was recorded, as torch got it and in no order."""
        assert self.profiler is not None
        results = self.profiler.kineto_results
        assert results is not None
        return list(results.events())


def peak_bytes(call: Callable[[], Any], device: torch.device) -> int:
    """Bytes on `device` that torch's allocators hold at most during a call, above what they held before it. Results
    count, and memory that native code takes elsewhere does not."""
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
    return most
