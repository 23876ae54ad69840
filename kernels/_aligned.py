"""Alignment for libraries that read 16 bytes at a time without checking where a tensor begins."""

from __future__ import annotations

import torch
from torch import Tensor


def aligned(t: Tensor) -> Tensor:
    """`t` itself where its memory begins at a multiple of 16 bytes, as torch's own allocations do, and its rows are
    without gaps; a contiguous copy elsewhere."""
    return t if t.data_ptr() % 16 == 0 and t.stride(-1) == 1 else t.clone(memory_format=torch.contiguous_format)
