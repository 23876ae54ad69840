"""Lets harnesses that know GPUs only run where there is none: their waits do nothing, and events read the host's clock.

It changes what they call, not what they do. On a machine with a GPU it changes nothing.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor


class HostEvent:
    """An event of a device that finishes every call before it returns."""

    def __init__(self, **_options: bool) -> None:
        self._ns = 0

    def record(self, _stream: Any = None) -> None:
        self._ns = time.perf_counter_ns()

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    def elapsed_time(self, end: HostEvent) -> float:
        """Milliseconds until `end`."""
        return (end._ns - self._ns) / 1e6


def replace_cuda() -> None:
    """Replaces what harnesses ask of torch.cuda, unless there is a GPU."""
    if torch.cuda.is_available():
        return
    stand_ins = {
        "Event": HostEvent,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "device": lambda device: nullcontext(),
        "get_device_name": lambda device=None: "the host",
        "manual_seed": lambda seed: None,
    }
    for name, value in stand_ins.items():
        setattr(torch.cuda, name, value)


def device_of(tensors: list[Tensor]) -> torch.device:
    return tensors[0].device
