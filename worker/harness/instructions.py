"""Counts the instructions of calls with perf_event_open, where the operating system permits it.

Other load, clocks and caches hardly change a count, so it shows changes of code that noise hides on shared cores.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warpwatch.contract.measurement import Counter

from .summary import summarize_counts

UNIT = "instructions per call"
HARDWARE, INSTRUCTIONS = 0, 1
_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_ATTRIBUTE_BYTES = 112
_EXCLUDE_KERNEL_AND_HYPERVISOR = 1 << 5 | 1 << 6
_CALLS = 10


class NotCountedError(Exception):
    """This machine cannot count; the message says why."""


class Events:
    """Counts one kind of event in user code of every thread of this process. Close it after use."""

    def __init__(self, kind: int = HARDWARE, event: int = INSTRUCTIONS) -> None:
        self._descriptors: list[int] = []
        try:
            for task in sorted(Path("/proc/self/task").iterdir()):
                self._descriptors.append(_open(kind, event, int(task.name)))
        except OSError as error:
            self.close()
            raise NotCountedError(f"the operating system refuses perf_event_open ({error.strerror})") from error

    def total(self) -> int:
        """The number of events so far."""
        return sum(int.from_bytes(os.read(descriptor, 8), "little") for descriptor in self._descriptors)

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()


def count_calls(calls: list[Callable[[], Any]], kind: int = HARDWARE, event: int = INSTRUCTIONS) -> Counter:
    """Counts the instructions of ten calls, one after the other; raises NotCountedError where it cannot."""
    events = Events(kind, event)
    try:
        counts = []
        for index in range(_CALLS):
            before = events.total()
            calls[index % len(calls)]()
            counts.append(float(events.total() - before))
    finally:
        events.close()
    return summarize_counts(UNIT, counts)


def _open(kind: int, event: int, task: int) -> int:
    """A file descriptor that reads the count of one thread; OSError when the operating system refuses."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(0, f"perf_event_open has no known number on {platform.machine()}")
    flags = _EXCLUDE_KERNEL_AND_HYPERVISOR
    # struct perf_event_attr: type, size, config, sample_period, sample_type, read_format, flags.
    attribute = struct.pack("=IIQQQQQ", kind, _ATTRIBUTE_BYTES, event, 0, 0, 0, flags).ljust(_ATTRIBUTE_BYTES, b"\0")
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(number, ctypes.c_char_p(attribute), task, -1, -1, 0)
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(descriptor)
