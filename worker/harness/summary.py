"""Summarises samples: median, its 95 % confidence interval, and noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from warpwatch.contract.measurement import PROTOCOLS, Counter, Measurement

from .distribution import describe, effective_size

NARROW_ENOUGH = 0.005
"""Sampling stops at this half-width of the median's 95 % interval, relative to the median."""
FEWEST = 10
"""With fewer samples the interval is not reliable."""


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the 95 % interval of the median from order statistics, for any distribution.

    Samples that depend on their neighbours carry less information, so the interval is as wide as that of their
    effective number of independent samples.
    """
    ordered = sorted(samples)
    return quantile(ordered, 0.5), *_limits(ordered, effective_size(samples))


def _limits(ordered: Sequence[float], independent: float) -> tuple[float, float]:
    """The interval of the median of sorted samples, of which so many are independent."""
    count = len(ordered)
    half = 0.98 * math.sqrt(count) * math.sqrt(count / independent)
    low = max(0, math.floor((count + 1) / 2 - half) - 1)
    return ordered[low], ordered[count - 1 - low]


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted numbers, with linear interpolation between neighbours."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def is_narrow(samples: Sequence[float]) -> bool:
    """Whether the interval of the median is narrow enough to stop sampling."""
    if len(samples) < FEWEST:
        return False
    ordered = sorted(samples)
    widest = 2 * NARROW_ENOUGH * quantile(ordered, 0.5)
    low, high = _limits(ordered, len(ordered))
    if high - low > widest:
        # It is even wider where samples depend on each other, which takes long to find out.
        return False
    low, high = _limits(ordered, effective_size(samples))
    return high - low <= widest


def summarize_counts(unit: str, counts: Sequence[float]) -> Counter:
    """The counter of at least one count."""
    median, low, high = interval(counts)
    return Counter(unit, median, low, high, len(counts))


def summarize(
    metric: str,
    samples: Sequence[float],
    dropped: int = 0,
    reason: str = "",
    protocol: str = PROTOCOLS["cpu"],
) -> Measurement:
    """The measurement of at least one sample in nanoseconds; it keeps every sample in the order taken."""
    median, low, high = interval(samples)
    ordered = sorted(samples)
    spread = quantile(ordered, 0.75) - quantile(ordered, 0.25)
    noise = spread / median if median else 0.0
    return Measurement(
        metric, [round(s, 3) for s in samples], median, low, high, noise, dropped, reason, describe(samples), protocol
    )


def add_time(measurement: Measurement, extra_ns: float) -> Measurement:
    """The measurement with `extra_ns` more in every sample."""
    samples = [sample + extra_ns for sample in measurement.samples_ns]
    m = measurement
    return summarize(m.metric, samples, m.dropped, m.dropped_reason, m.protocol)
