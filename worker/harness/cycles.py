"""Counts the clock cycles of calls on an NVIDIA GPU, which also gives the actual clock of its multiprocessors.

NVML reports the requested clock. On an H100 the actual clock was 15 MHz higher for seconds in some processes and not in
others; compute-bound kernels then took 0.7 % less time and the same number of cycles. Importing this module raises
ImportError where Triton is missing.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer, smid

from warpwatch.contract.measurement import Counter

from .summary import summarize_counts
from .timer_cuda import GraphTimer

_ROUNDS = 2
"""Slices of each memory placement."""
_MULTIPROCESSORS = 1024
"""An upper bound on multiprocessor numbers, which have gaps."""
_BLOCKS_EACH = 4
"""Stamping blocks per multiprocessor, enough to reach nearly all of them."""


@triton.jit
def _stamp(stamps):  # type: ignore[no-untyped-def]
    """Writes the cycle counter and the nanosecond timer of the current multiprocessor into its row."""
    row = stamps + 2 * smid()
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    tl.store(row, cycles)
    tl.store(row + 1, globaltimer())


def count_cycles(timer: GraphTimer, device: torch.device) -> dict[str, Counter]:
    """`cycles` per call over replays of the timer's graphs, two slices of each, and the actual `clock` in GHz."""
    stamp = _stamp[(_BLOCKS_EACH * torch.cuda.get_device_properties(device).multi_processor_count,)]
    cycles, gigahertz = [], []
    # Triton compiles at the first launch, which must not fall between two replays.
    stamp(_empty_stamps(device))
    for _ in range(_ROUNDS * timer.placements):
        before, after = _empty_stamps(device), _empty_stamps(device)
        launches = timer.take_between(partial(stamp, before), partial(stamp, after))
        elapsed, clock = between(before.cpu(), after.cpu())
        cycles.append(elapsed / launches)
        gigahertz.append(clock)
    return {"cycles": summarize_counts("cycles per call", cycles), "clock": summarize_counts("GHz", gigahertz)}


def _empty_stamps(device: torch.device) -> Tensor:
    return torch.zeros(_MULTIPROCESSORS, 2, dtype=torch.int64, device=device)


def between(before: Tensor, after: Tensor) -> tuple[float, float]:
    """(elapsed cycles, clock in GHz): medians over the multiprocessors with a stamp both before and after.

    before, after: int64 of shape (multiprocessors, 2); a row of zeros is a missing stamp.
    """
    stamped = (before[:, 1] > 0) & (after[:, 1] > 0)
    cycles, nanoseconds = (after - before)[stamped].double().unbind(1)
    return float(cycles.median()), float((cycles / nanoseconds).median())
