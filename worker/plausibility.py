"""Bounds what a child may claim: kernel code and the code that times it share a process, so no reply can be trusted.

The bounds are physical and wide: no honest kernel comes near them, and a forged time can be no better than they allow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

COPIES = {"cuda": 16.0, "cpu": 64.0}
"""How many times faster than a copy in memory a kind of device may move the bytes of a case.

The caches of an H100 deliver about eight times the bandwidth of its memory, the first-level caches of two CPU cores
about thirty times.
"""
_PRODUCTS = 4.0
"""How many times faster than the fastest measured matrix product the operations of a case may be done: structured
sparsity halves the operations, and a device may clock higher than when its ceilings were measured."""


_LOOKS = 3
"""How often the ceilings are measured again in a job, before the first accusations by them."""


@dataclass(slots=True)
class TimeLimits:
    """Limits of plausible times on a device. peaks: its measured ceilings, operations or bytes per second.

    measure_again: measures what nothing exceeds once more; None where that failed. Ceilings that were measured beside
    other work are a fraction of what the device can do, and honest code is faster than they allow. So nobody is accused
    by those alone, and the highest ever count.
    """

    peaks: Mapping[str, float] | None
    device_kind: str
    measure_again: Callable[[], Mapping[str, float] | None]
    _looks: int = 0
    _are_confirmed: bool = False

    def objection(
        self,
        samples_ns: Sequence[float],
        flops: int,
        bytes_moved: int,
        elapsed_seconds: float,
        prepare_ns: float = 0.0,
    ) -> str | None:
        """Why these times of single calls cannot be true; None when they can, or when nobody can tell.

        elapsed_seconds: what the request took by the parent's clock. Every sample was taken meanwhile, but for
        prepare_ns in each: the time of `prepare`, which was measured apart.
        """
        if not samples_ns:
            return None
        total_seconds = (sum(samples_ns) - len(samples_ns) * prepare_ns) / 1e9
        if total_seconds > elapsed_seconds:
            return f"Its samples take {total_seconds:.3g} s, and the request took {elapsed_seconds:.3g} s"
        # The median, because a clock may now and then jump.
        typical_ns = median(samples_ns)
        floor_ns = self._floor_ns(flops, bytes_moved)
        while typical_ns < floor_ns and self._looks < _LOOKS:
            self._looks += 1
            again, peaks = self.measure_again(), self.peaks or {}
            self._are_confirmed |= again is not None
            self.peaks = {**peaks, **{name: max(rate, peaks.get(name, 0.0)) for name, rate in (again or {}).items()}}
            floor_ns = self._floor_ns(flops, bytes_moved)
        if typical_ns < floor_ns and self._are_confirmed:
            return (
                f"A call of {typical_ns:.3g} ns is faster than the device can be: it takes {floor_ns:.3g} ns at least"
            )
        return None

    def _floor_ns(self, flops: int, bytes_moved: int) -> float:
        return fastest_possible_ns(flops, bytes_moved, self.peaks or {}, self.device_kind)


def fastest_possible_ns(flops: int, bytes_moved: int, peaks: Mapping[str, float], device_kind: str) -> float:
    """The time in ns below which no call can do this work; 0 where no ceiling is known."""
    copy = peaks.get("copy", 0.0) * COPIES[device_kind]
    product = max((rate for name, rate in peaks.items() if name != "copy"), default=0.0) * _PRODUCTS
    moving_ns = 1e9 * bytes_moved / copy if copy > 0 else 0.0
    return max(moving_ns, 1e9 * flops / product if product > 0 else 0.0)
