"""Counts the instructions of calls where the kernel lets an ordinary process do so (perf_event_open).

A count hardly moves when neighbours, clocks or caches do, so it shows a change of the code that timings on shared cores
hide.
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
    """This machine does not count; the message says why."""


class Events:
    """One kind of event of every thread of this process, user code only. Close it after use."""

    def __init__(self, kind: int = HARDWARE, event: int = INSTRUCTIONS) -> None:
        self._descriptors: list[int] = []
        try:
            for task in sorted(Path("/proc/self/task").iterdir()):
                self._descriptors.append(_open(kind, event, int(task.name)))
        except OSError as error:
            self.close()
            raise NotCountedError(f"the kernel counts no instructions for this process ({error.strerror})") from error

    def total(self) -> int:
        """How many there were so far."""
        return sum(int.from_bytes(os.read(descriptor, 8), "little") for descriptor in self._descriptors)

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()


def count_calls(calls: list[Callable[[], Any]], kind: int = HARDWARE, event: int = INSTRUCTIONS) -> Counter:
    """Instructions of ten calls, one after the other; NotCountedError where they are not counted."""
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
    """A descriptor to read the count from; OSError when the kernel refuses, or is none that has it."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(0, "", f"no system call known on {platform.machine()}")
    flags = _EXCLUDE_KERNEL_AND_HYPERVISOR
    # struct perf_event_attr: type, size, config, sample_period, sample_type, read_format, flags.
    attribute = struct.pack("=IIQQQQQ", kind, _ATTRIBUTE_BYTES, event, 0, 0, 0, flags).ljust(_ATTRIBUTE_BYTES, b"\0")
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(number, ctypes.c_char_p(attribute), task, -1, -1, 0)
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(descriptor)
