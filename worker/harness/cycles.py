"""Counts the clock cycles of calls on an NVIDIA GPU, and with them the clock that its multiprocessors really had.

NVML tells the clock asked for. On an H100 the real one was 15 MHz above it in some processes and not in others, for
seconds on end, and what waits for arithmetic took 0.7 % less time there and as many cycles. Importing this raises
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
_NUMBERS = 1024
"""Multiprocessors are numbered with gaps, but below this."""
_BLOCKS_EACH = 4
"""Stamping blocks per multiprocessor, so that hardly one is left out."""


@triton.jit
def _stamp(stamps):  # type: ignore[no-untyped-def]
    """Writes (cycles, nanoseconds) as the multiprocessor that this runs on knows them into its row."""
    row = stamps + 2 * smid()
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    tl.store(row, cycles)
    tl.store(row + 1, globaltimer())


def count_cycles(timer: GraphTimer, device: torch.device) -> dict[str, Counter]:
    """`cycles`: of a call in replays of the timer's graphs, two slices of each; `clock`: what they went by, in GHz."""
    stamp = _stamp[(_BLOCKS_EACH * torch.cuda.get_device_properties(device).multi_processor_count,)]
    cycles, gigahertz = [], []
    # Compiled here and not between two replays.
    stamp(_no_stamps(device))
    for _ in range(_ROUNDS * timer.placements):
        before, after = _no_stamps(device), _no_stamps(device)
        launches = timer.take_between(partial(stamp, before), partial(stamp, after))
        elapsed, clock = between(before.cpu(), after.cpu())
        cycles.append(elapsed / launches)
        gigahertz.append(clock)
    return {"cycles": summarize_counts("cycles per call", cycles), "clock": summarize_counts("GHz", gigahertz)}


def _no_stamps(device: torch.device) -> Tensor:
    return torch.zeros(_NUMBERS, 2, dtype=torch.int64, device=device)


def between(before: Tensor, after: Tensor) -> tuple[float, float]:
    """(cycles that passed, GHz): medians over the multiprocessors that left a stamp both times.

    before, after: int64 (multiprocessors, 2), a row of zeros where there is none.
    """
    seen = (before[:, 1] > 0) & (after[:, 1] > 0)
    cycles, nanoseconds = (after - before)[seen].double().unbind(1)
    return float(cycles.median()), float((cycles / nanoseconds).median())
