"""How many warps of a kernel fit on a multiprocessor, from the device's limits; what the hardware then achieves is
another matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

_REGISTER_UNIT, _WARP_UNIT, _SHARED_UNIT = 256, 4, 128
"""Registers are given out in units per warp, warps in fours, shared memory in bytes, since compute capability 7.0."""
_RESERVED_SHARED = 1024
"""Shared memory that CUDA keeps of every block, from compute capability 8.0 on."""
_BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24}
_MOST_BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Occupancy:
    """share: resident warps over the most that fit. blocks: per multiprocessor. limit: what runs out first.

    waves: how often all multiprocessors are filled; just above a whole number, most of them idle at the end.
    """

    share: float
    blocks: int
    limit: str
    waves: float


def occupancy(
    device: dict[str, Any], grid: Sequence[int], block: Sequence[int], registers: int, shared_bytes: int
) -> Occupancy | None:
    """Of a launch, by the device's properties as torch.profiler writes them; None where they are not known."""
    try:
        warp, registers_of_all = int(device["warpSize"]), int(device["regsPerMultiprocessor"])
        shared_of_all, threads_of_all = (
            int(device["sharedMemPerMultiprocessor"]),
            int(device["maxThreadsPerMultiprocessor"]),
        )
        capability, processors = (int(device["computeMajor"]), int(device["computeMinor"])), int(device["numSms"])
    except (KeyError, TypeError, ValueError):
        return None
    warps, most_warps = ceil(prod(block) / warp), threads_of_all // warp
    if min(warps, most_warps, processors) <= 0:
        return None
    limits = {"warps": most_warps // warps, "blocks": _BLOCKS.get(capability, _MOST_BLOCKS)}
    if registers > 0:
        of_a_warp = _up(registers * warp, _REGISTER_UNIT)
        limits["registers"] = _down(registers_of_all // of_a_warp, _WARP_UNIT) // warps
    if shared_bytes > 0:
        reserved = _RESERVED_SHARED if capability >= (8, 0) else 0
        limits["shared memory"] = shared_of_all // _up(shared_bytes + reserved, _SHARED_UNIT)
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    waves = prod(grid) / (blocks * processors) if blocks else 0.0
    return Occupancy(blocks * warps / most_warps, blocks, limit, waves)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _down(value: int, unit: int) -> int:
    return value // unit * unit
