"""Counts per call: instructions on a CPU, clock cycles on a GPU, memory and energy.

Instructions come from perf_event_open, where the operating system permits it. Other load, clocks and caches hardly
change a count, so it shows changes of code that noise hides on shared cores.

Cycles also give the actual clock of the multiprocessors. NVML reports the requested clock. On an H100 the actual clock
was 15 MHz higher for seconds in some processes and not in others; compute-bound kernels then took 0.7 % less time and
the same number of cycles. The kernel that stamps them is PTX, which the driver translates in milliseconds: a compiler
would take every process about a second.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.cuda._utils import _cuda_load_module

from warpwatch.contract.measurement import Counter

from ..problem import CaseProblem
from .cuda import GraphTimer
from .energy import measure_energy
from .graphs import NoMetricError
from .kernel import record_memory
from .rotation import Rotation
from .summary import summarize_counts

_LONGEST_RECORDED_NS = 100_000_000
"""Of a call whose memory is recorded: each allocation of a longer one, such as a training run, is an event."""


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Counts per call, and notes on the counts that this machine cannot take."""

    counters: Mapping[str, Counter] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __or__(self, newer: CallCounts) -> CallCounts:
        """Both together; of what both count, the newer."""
        return CallCounts({**self.counters, **newer.counters}, self.notes + newer.notes)


def count_call(problem: CaseProblem, seed: int, call_ns: float | None, *, with_energy: bool) -> CallCounts:
    """Counts instructions, memory and perhaps energy. call_ns: how long a call takes, None where no metric was measured
    and only instructions are counted."""
    counts = count_instructions(problem, seed)
    if call_ns is not None:
        counts |= count_memory(problem, seed, call_ns)
        if with_energy:
            counts |= count_energy(problem, seed, call_ns)
    return counts


def count_instructions(problem: CaseProblem, seed: int) -> CallCounts:
    """The instructions of a call on a CPU; nothing on a GPU."""
    if problem.device.type != "cpu":
        return CallCounts()
    calls: list[Callable[[], Any]] = Rotation(problem, seed, 2).calls
    try:
        return CallCounts({"instructions": count_calls(calls)})
    except NotCountedError as error:
        return CallCounts(notes=(f"No instruction counts: {error}",))


def count_cycles(timer: GraphTimer, device: torch.device) -> CallCounts:
    """The clock cycles of a call on a GPU and the actual clock meanwhile; timer: that of `graph`."""
    try:
        return CallCounts(measure_cycles(timer, device))
    except Exception as error:  # noqa: BLE001 - torch's interface to the driver is private; none may fail a bench.
        return CallCounts(notes=(f"No cycle counts: {type(error).__name__}: {error}",))


def count_memory(problem: CaseProblem, seed: int, call_ns: float) -> CallCounts:
    """The bytes that a call allocates at most at once, its results included, and the bytes that a forward pass with
    gradients leaves allocated until the backward pass, its results included. call_ns: how long a call takes."""
    if call_ns > _LONGEST_RECORDED_NS:
        return CallCounts(notes=("No memory count: a call takes too long to record each allocation",))
    data = problem.data(seed)
    call = problem.call(data)
    call()
    most, _ = record_memory(call, problem.device)
    counters = {"memory": _exact_bytes(most)}
    if problem.records:
        _, kept = record_memory(problem.forward_pass(call, data), problem.device)
        counters["kept"] = _exact_bytes(kept)
    return CallCounts(counters)


def _exact_bytes(count: int) -> Counter:
    return Counter("bytes", float(count), float(count), float(count), 1)


def count_energy(problem: CaseProblem, seed: int, call_ns: float) -> CallCounts:
    """The joules of a call on a GPU, and the watts meanwhile; call_ns: how long a call takes."""
    if problem.device.type != "cuda":
        return CallCounts()
    try:
        return CallCounts(measure_energy(problem, seed, call_ns))
    except (NoMetricError, torch.OutOfMemoryError) as error:
        return CallCounts(notes=(f"No energy: {error}",))


_MULTIPROCESSORS = 1024
"""An upper bound on multiprocessor numbers, which have gaps."""
_BLOCKS_EACH = 4
"""Stamping blocks per multiprocessor, enough to reach nearly all of them."""


_STAMP = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry stamp(.param .u64 stamps)
{
    .reg .u32 %multiprocessor;
    .reg .u64 %offset, %row, %cycles, %nanoseconds;
    ld.param.u64 %row, [stamps];
    mov.u32 %multiprocessor, %smid;
    mul.wide.u32 %offset, %multiprocessor, 16;
    add.u64 %row, %row, %offset;
    mov.u64 %cycles, %clock64;
    mov.u64 %nanoseconds, %globaltimer;
    st.global.u64 [%row], %cycles;
    st.global.u64 [%row+8], %nanoseconds;
    ret;
}
"""
"""Writes the cycle counter and the nanosecond timer of the current multiprocessor into its row of `stamps`."""


def measure_cycles(timer: GraphTimer, device: torch.device) -> dict[str, Counter]:
    """`cycles` per call over replays of the timer's graphs, one slice of each, and the actual `clock` in GHz."""
    stamp = _load_stamp(device)
    cycles, gigahertz = [], []
    # The driver may load code at the first launch, which must not fall between two replays.
    stamp(_empty_stamps(device))
    for _ in range(timer.placements):
        before, after = _empty_stamps(device), _empty_stamps(device)
        launches = timer.take_between(partial(stamp, before), partial(stamp, after))
        elapsed, clock = between(before.cpu(), after.cpu())
        cycles.append(elapsed / launches)
        gigahertz.append(clock)
    return {"cycles": summarize_counts("cycles per call", cycles), "clock": summarize_counts("GHz", gigahertz)}


@cache
def _load_stamp(device: torch.device) -> Callable[[Tensor], None]:
    """Queues the kernel on the current stream."""
    kernel = _cuda_load_module(_STAMP).stamp  # type: ignore[union-attr]
    blocks = _BLOCKS_EACH * torch.cuda.get_device_properties(device).multi_processor_count
    return lambda stamps: kernel(grid=(blocks, 1, 1), block=(1, 1, 1), args=[stamps])


def _empty_stamps(device: torch.device) -> Tensor:
    return torch.zeros(_MULTIPROCESSORS, 2, dtype=torch.int64, device=device)


def between(before: Tensor, after: Tensor) -> tuple[float, float]:
    """(elapsed cycles, clock in GHz): medians over the multiprocessors with a stamp both before and after.

    before, after: int64 of shape (multiprocessors, 2); a row of zeros is a missing stamp.
    """
    stamped = (before[:, 1] > 0) & (after[:, 1] > 0)
    cycles, nanoseconds = (after - before)[stamped].double().unbind(1)
    return float(cycles.median()), float((cycles / nanoseconds).median())


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
