"""Computes theoretical occupancy: how many warps of a kernel fit on a multiprocessor by the limits of the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

_REGISTER_UNIT, _WARP_UNIT, _SHARED_UNIT = 256, 4, 128
"""Allocation units since compute capability 7.0: registers per warp, warps, and bytes of shared memory."""
_RESERVED_SHARED = 1024
"""Bytes of shared memory that CUDA reserves in every block, from compute capability 8.0 on."""
_BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24}
_MOST_BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Theoretical occupancy of one launch.

    share: resident warps over the maximum. blocks: resident blocks per multiprocessor. limit: the resource that runs
    out first. waves: how often the grid fills all multiprocessors; just above an integer, most of them idle at the end.
    """

    share: float
    blocks: int
    limit: str
    waves: float


def occupancy(
    device: dict[str, Any], grid: Sequence[int], block: Sequence[int], registers: int, shared_bytes: int
) -> Occupancy | None:
    """The occupancy of a launch; None where properties of the device are missing.

    device: its properties as torch.profiler writes them. registers: per thread.
    """
    try:
        warp_size, processors = int(device["warpSize"]), int(device["numSms"])
        all_registers = int(device["regsPerMultiprocessor"])
        all_shared = int(device["sharedMemPerMultiprocessor"])
        all_threads = int(device["maxThreadsPerMultiprocessor"])
        capability = (int(device["computeMajor"]), int(device["computeMinor"]))
    except (KeyError, TypeError, ValueError):
        return None
    warps, most_warps = ceil(prod(block) / warp_size), all_threads // warp_size
    if min(warps, most_warps, processors) <= 0:
        return None
    limits = {"warps": most_warps // warps, "blocks": _BLOCKS.get(capability, _MOST_BLOCKS)}
    if registers > 0:
        warp_registers = _round_up(registers * warp_size, _REGISTER_UNIT)
        limits["registers"] = all_registers // warp_registers // _WARP_UNIT * _WARP_UNIT // warps
    if shared_bytes > 0:
        reserved = _RESERVED_SHARED if capability >= (8, 0) else 0
        limits["shared memory"] = all_shared // _round_up(shared_bytes + reserved, _SHARED_UNIT)
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    waves = prod(grid) / (blocks * processors) if blocks else 0.0
    return Occupancy(blocks * warps / most_warps, blocks, limit, waves)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
