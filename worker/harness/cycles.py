"""Counts the clock cycles of calls on an NVIDIA GPU, which also gives the actual clock of its multiprocessors.

NVML reports the requested clock. On an H100 the actual clock was 15 MHz higher for seconds in some processes and not in
others; compute-bound kernels then took 0.7 % less time and the same number of cycles.

The kernel is PTX, which the driver translates in milliseconds: a compiler would take every process about a second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.cuda._utils import _cuda_load_module

from warpwatch.contract.measurement import Counter

from .summary import summarize_counts
from .timer_cuda import GraphTimer

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
