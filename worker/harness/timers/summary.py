"""Summarises samples: median, its 95 % confidence interval, noise, drift, modes, autocorrelation and outliers.

Pure functions of samples in the order they were taken. They use ranks and medians, since timings have long tails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from operator import mul
from statistics import median

from warpwatch.contract.measurement import PROTOCOLS, Counter, Distribution, Measurement, Mode

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


FEWEST_DESCRIBED = 20
"""Smaller sets of samples are not described."""
_BLOCKS = 30
_LAGS = 50
_SMALLEST_MODE = 0.1
_APART = 0.01
"""Modes closer than this share of the median are usually steps of the clock and not states of the machine."""
_FULL_WINDOW = 8
_VALLEY = 0.75
_OUTLIER_DEVIATIONS = 6.0
_NORMAL_MAD = 1.4826


def describe(samples: Sequence[float]) -> Distribution | None:
    """The distribution of `samples`, in nanoseconds; None for fewer than 20."""
    if len(samples) < FEWEST_DESCRIBED:
        return None
    drift, chance = drift_of(samples)
    modes = modes_of(samples)
    return Distribution(
        drift=drift,
        drift_chance=chance,
        modes=modes,
        autocorrelation=autocorrelation(ranks(samples), 1),
        outliers=outlier_share(samples, [mode.ns for mode in modes] or [median(samples)]),
        effective=effective_size(samples),
    )


def drift_of(samples: Sequence[float]) -> tuple[float, float]:
    """(change from first to last sample over the median, the p-value of such a trend without a real one).

    Both use the medians of at most 30 blocks: the Theil-Sen slope, and the Mann-Kendall test with its variance widened
    by the dependence between neighbouring blocks.
    """
    count = min(_BLOCKS, len(samples) // 2)
    borders = [round(index * len(samples) / count) for index in range(count + 1)]
    blocks = [median(samples[start:end]) for start, end in pairwise(borders)]
    centre = median(samples)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    slope = median([(blocks[j] - blocks[i]) / (j - i) for i, j in pairs])
    score = sum((blocks[j] > blocks[i]) - (blocks[j] < blocks[i]) for i, j in pairs)
    # The residuals without the trend show how much neighbouring blocks depend on each other.
    residuals = [block - slope * index for index, block in enumerate(blocks)]
    variance = count * (count - 1) * (2 * count + 5) / 18 * count / effective_size(residuals)
    z = (abs(score) - 1) / math.sqrt(variance) if score else 0.0
    return (slope * (count - 1) / centre if centre else 0.0), math.erfc(max(z, 0.0) / math.sqrt(2))


def modes_of(samples: Sequence[float]) -> list[Mode]:
    """The two modes of a bimodal set, the larger first; empty for a set with one mode.

    Otsu's method splits the samples in two. The split counts when the middle third between the two medians holds fewer
    samples than the range around either median, which no normal, uniform or exponential set shows.
    """
    ordered = sorted(samples)
    lower, upper = _split(ordered)
    low, high = median(lower), median(upper)
    width = (high - low) / 3
    if min(len(lower), len(upper)) < _SMALLEST_MODE * len(ordered) or high - low < _APART * median(ordered):
        return []
    around = min(_count(ordered, centre - width / 2, centre + width / 2) for centre in (low, high))
    between = _count(ordered, low + width, high - width)
    if around < _FULL_WINDOW or between + 2 * math.sqrt(between + 1) > _VALLEY * around:
        return []
    total = len(ordered)
    return sorted([Mode(low, len(lower) / total), Mode(high, len(upper) / total)], key=lambda mode: -mode.share)


def autocorrelation(values: Sequence[float], lag: int) -> float:
    """Correlation of the values with those `lag` places later; 0 when all are equal."""
    deviations = _deviations(values)
    spread = sum(map(mul, deviations, deviations))
    return _products(deviations, lag) / spread if spread else 0.0


def _deviations(values: Sequence[float]) -> list[float]:
    centre = sum(values) / len(values)
    return [value - centre for value in values]


def _products(deviations: Sequence[float], lag: int) -> float:
    total: float = sum(map(mul, deviations, deviations[lag:]))
    return total


def effective_size(samples: Sequence[float]) -> float:
    """The number of independent samples that would give an equally exact median; at most the number of samples.

    A median depends on which side of it each sample lies, so the correlation is that of these sides. It is summed over
    lags while the sum of two neighbouring lags is positive (Geyer's initial positive sequence).
    """
    centre = median(samples)
    sides = _deviations([float((value > centre) - (value < centre)) for value in samples])
    count, spread = len(sides), sum(map(mul, sides, sides))
    time = 1.0
    for lag in range(1, min(count // 3, _LAGS) if spread else 1, 2):
        pair = (_products(sides, lag) + _products(sides, lag + 1)) / spread
        # A smaller sum is chance, and would widen every interval a little.
        if pair < 2 / math.sqrt(count):
            break
        time += 2 * pair
    return max(1.0, count / time)


def outlier_share(samples: Sequence[float], centres: Sequence[float]) -> float:
    """The share of samples further from their nearest centre than six times the usual deviation."""
    deviations = [min(abs(value - centre) for centre in centres) for value in samples]
    usual = _NORMAL_MAD * median(deviations)
    return sum(deviation > _OUTLIER_DEVIATIONS * usual for deviation in deviations) / len(samples) if usual else 0.0


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, counted from 0; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    result = [0.0] * len(values)
    starts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(order)) if values[a] != values[b]), len(order)]
    for start, end in pairwise(starts):
        for index in order[start:end]:
            result[index] = (start + end - 1) / 2
    return result


def _split(ordered: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Splits sorted numbers where the variance between both parts is largest; 1 % at either end does not count."""
    count, edge = len(ordered), max(1, len(ordered) // 100)
    kept = ordered[edge : count - edge]
    total, before = sum(kept), 0.0
    best, place = -1.0, edge + 1
    for index, (value, after) in enumerate(pairwise(kept), start=1):
        before += value
        if value == after:
            continue
        low, high = before / index, (total - before) / (len(kept) - index)
        apart = index * (len(kept) - index) * (high - low) ** 2
        if apart > best:
            best, place = apart, edge + index
    return ordered[:place], ordered[place:]


def _count(ordered: Sequence[float], low: float, high: float) -> int:
    return sum(low <= value <= high for value in ordered)
