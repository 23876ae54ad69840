"""Times calls on the CPU with the monotonic clock.

`hot`: an inner loop of at least 50 µs over rotated inputs, divided by its length. `cold`: single calls, each after the
last-level cache was filled with other memory. The loop's own cost, some 50 ns a call, is part of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch

from .problem import CaseProblem
from .rotation import Rotation

SAMPLE_NS = 50_000
"""A hot sample lasts at least this long, a thousand times the clock's resolution."""
SLICE_SAMPLES = 25
"""Samples between two rolls of the inputs."""
SLICE_NS = 20_000_000
_MOST_SAMPLES = 1000
_FALLBACK_CACHE = 32 * 2**20
_LARGEST_FLUSH = 256 * 2**20
_SETS = 3
_LARGEST_SETS_BYTES = 2**30


class CpuHotTimer:
    """Inner loops of calls, with data and code in the caches as far as they fit."""

    placements = 1

    def __init__(self, problem: CaseProblem, seed: int, budget_ns: int) -> None:
        self._rotation = Rotation(problem, seed, _sets_for(problem.data(seed).nbytes))
        self._kept: dict[int, Any] = {}
        calls, _ = self._rotation.batch(len(self._rotation.calls))
        _time(calls)
        elapsed, _ = _time(calls)
        # Long budgets make samples longer rather than more, so that a result stays small.
        wanted = max(SAMPLE_NS, budget_ns / _MOST_SAMPLES)
        self._inner = max(1, math.ceil(wanted * len(calls) / max(elapsed, 1)))
        self._last = 0

    def take(self) -> list[float]:
        """One slice: nanoseconds per call of up to 25 samples, fewer where 20 ms are over before. At least one."""
        self._rotation.roll()
        return self._slice()

    def verify(self) -> None:
        """Raises WrongResultError when a slice like the others, on numbers never seen, computes something wrong."""
        self._rotation.renew()
        self._slice(spoil=True)
        self._rotation.verify(self._kept)

    def _slice(self, *, spoil: bool = False) -> list[float]:
        # Results kept from before belong to other numbers.
        self._kept.clear()
        if self._inner > 1:
            self._sample()
        samples: list[float] = []
        end = perf_counter_ns() + SLICE_NS
        while len(samples) < SLICE_SAMPLES and (not samples or perf_counter_ns() < end):
            samples.append(self._sample())
            if spoil:
                self._kept[self._last] = self._rotation.spoil(self._kept[self._last])
        return samples

    def _sample(self) -> float:
        calls, last = self._rotation.batch(self._inner)
        elapsed, self._kept[last] = _time(calls)
        self._last = last
        return elapsed / self._inner


class CpuColdTimer(CpuHotTimer):
    """Single calls on data that no cache holds."""

    def __init__(self, problem: CaseProblem, seed: int, budget_ns: int) -> None:
        super().__init__(problem, seed, budget_ns)
        self._inner = 1
        self._other = torch.zeros(min(2 * last_level_cache(), _LARGEST_FLUSH) // 4, dtype=torch.int32)

    def _sample(self) -> float:
        self._other.add_(1)
        return super()._sample()


def open_timer(problem: CaseProblem, seed: int, metric: str, budget_ns: int) -> CpuHotTimer:
    """A warmed-up timer for one metric of contract.measurement.METRICS."""
    return (CpuColdTimer if metric == "cold" else CpuHotTimer)(problem, seed, budget_ns)


def last_level_cache() -> int:
    """Bytes of the largest cache of CPU 0; 32 MiB where the system does not say."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KMG")) * unit)
    return max(sizes, default=_FALLBACK_CACHE)


def _sets_for(set_bytes: int) -> int:
    """How many input sets to rotate through: three, or two where three would take more than 1 GiB."""
    return _SETS if _SETS * set_bytes <= _LARGEST_SETS_BYTES else _SETS - 1


def _time(calls: list[Callable[[], Any]]) -> tuple[int, Any]:
    """(nanoseconds that all the calls took, what the last one returned)."""
    result = None
    start = perf_counter_ns()
    for call in calls:
        result = call()
    return perf_counter_ns() - start, result
