"""How close a measured time comes to what the device's ceilings allow."""

from __future__ import annotations

_PEAK_OF = {"f16": "bf16"}
"""Precisions whose ceiling is measured under another name."""


def floors(flops: int, bytes_moved: int, precision: str | None, peaks: dict[str, float]) -> dict[str, float]:
    """Nanoseconds that moving the bytes ("copy") and doing the operations (the precision's name) take at the device's
    measured peaks (see CeilingsReply), those that are known."""
    peak = _PEAK_OF.get(precision or "", precision or "")
    work = {"copy": float(bytes_moved), peak: float(flops)}
    return {name: 1e9 * amount / peaks[name] for name, amount in work.items() if peaks.get(name, 0) > 0}


def roofline(
    flops: int, bytes_moved: int, median_ns: float, precision: str | None, peaks: dict[str, float]
) -> tuple[float | None, str | None]:
    """Share of the measured roofline, between 0 and about 1, and the name of the ceiling that binds; None, None where
    no ceiling is known.

    The least time of a case is the longer of its floors.
    """
    least = floors(flops, bytes_moved, precision, peaks)
    if not least or median_ns <= 0:
        return None, None
    bound = max(least, key=lambda name: least[name])
    return least[bound] / median_ns, bound
