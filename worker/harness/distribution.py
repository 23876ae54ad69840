"""What a set of samples looks like besides its median: drift, two modes, dependence between neighbours, outliers.

Pure functions of samples in the order they were taken. Everything is drawn from ranks and medians, since timings have
long tails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from warpwatch.contract.measurement import Distribution, Mode

FEWEST = 20
"""Samples below which none of this can be told."""
_BLOCKS = 30
_LAGS = 50
_SMALLEST_MODE = 0.1
_APART = 0.01
"""Modes nearer to each other than this part of the median are steps of the clock more often than states of the machine.
"""
_FULL_WINDOW = 8
_VALLEY = 0.75
_OUTLIER_DEVIATIONS = 6.0
_NORMAL_MAD = 1.4826


def describe(samples: Sequence[float]) -> Distribution | None:
    """All of it; None for fewer than 20 samples."""
    if len(samples) < FEWEST:
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
    """(change from the first sample to the last over the median, the chance of such a trend where there is none).

    The slope is Theil and Sen's, the chance Mann and Kendall's with the spread that dependent neighbours leave, both
    over the medians of at most 30 blocks.
    """
    blocks = _block_medians(samples)
    count = len(blocks)
    centre = median(samples)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    slope = median([(blocks[j] - blocks[i]) / (j - i) for i, j in pairs])
    score = sum((blocks[j] > blocks[i]) - (blocks[j] < blocks[i]) for i, j in pairs)
    # What is left without the trend tells how much neighbouring blocks depend on each other.
    left = [block - slope * index for index, block in enumerate(blocks)]
    variance = count * (count - 1) * (2 * count + 5) / 18 * count / effective_size(left)
    z = (abs(score) - 1) / math.sqrt(variance) if score else 0.0
    return (slope * (count - 1) / centre if centre else 0.0), math.erfc(max(z, 0.0) / math.sqrt(2))


def modes_of(samples: Sequence[float]) -> list[Mode]:
    """The two modes of a bimodal set, the larger first; none where one mode explains it.

    The best split in two (Otsu's) counts when the middle third between the two halves' medians is emptier than the
    surroundings of either, which neither a normal nor a uniform nor an exponential set shows.
    """
    ordered = sorted(samples)
    lower, upper = _split(ordered)
    left, right = median(lower), median(upper)
    width = (right - left) / 3
    if min(len(lower), len(upper)) < _SMALLEST_MODE * len(ordered) or right - left < _APART * median(ordered):
        return []
    around = min(_count(ordered, place - width / 2, place + width / 2) for place in (left, right))
    between = _count(ordered, left + width, right - width)
    if around < _FULL_WINDOW or between + 2 * math.sqrt(between + 1) > _VALLEY * around:
        return []
    total = len(ordered)
    return sorted([Mode(left, len(lower) / total), Mode(right, len(upper) / total)], key=lambda mode: -mode.share)


def autocorrelation(values: Sequence[float], lag: int) -> float:
    """Correlation of the values with those `lag` places later; 0 where all are equal."""
    centre = sum(values) / len(values)
    spread = sum((value - centre) ** 2 for value in values)
    together = sum((a - centre) * (b - centre) for a, b in zip(values, values[lag:], strict=False))
    return together / spread if spread else 0.0


def effective_size(samples: Sequence[float]) -> float:
    """How many independent samples would know the median as well as these do; at most their number.

    A median depends on which side of it each sample lies, so that is what the correlation is taken of, summed over lags
    as long as two neighbouring ones are positive together (Geyer's initial positive sequence).
    """
    centre = median(samples)
    sides = [float((value > centre) - (value < centre)) for value in samples]
    count = len(sides)
    time = 1.0
    for lag in range(1, min(count // 3, _LAGS), 2):
        pair = autocorrelation(sides, lag) + autocorrelation(sides, lag + 1)
        # Below this the sum is chance, and would widen every interval a little.
        if pair < 2 / math.sqrt(count):
            break
        time += 2 * pair
    return max(1.0, count / time)


def outlier_share(samples: Sequence[float], centres: Sequence[float]) -> float:
    """Part of the samples that lie further from the nearest centre than six times the usual deviation from it."""
    deviations = [min(abs(value - centre) for centre in centres) for value in samples]
    usual = _NORMAL_MAD * median(deviations)
    return sum(deviation > _OUTLIER_DEVIATIONS * usual for deviation in deviations) / len(samples) if usual else 0.0


def ranks(values: Sequence[float]) -> list[float]:
    """Each value's place in order; equal ones share the mean of their places."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    found = [0.0] * len(values)
    starts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(order)) if values[a] != values[b]), len(order)]
    for start, end in pairwise(starts):
        for index in order[start:end]:
            found[index] = (start + end - 1) / 2
    return found


def _block_medians(samples: Sequence[float]) -> list[float]:
    count = min(_BLOCKS, len(samples) // 2)
    borders = [round(index * len(samples) / count) for index in range(count + 1)]
    return [median(samples[start:end]) for start, end in pairwise(borders)]


def _split(ordered: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """The two parts of sorted numbers whose means lie furthest apart for their sizes; a hundredth at either end has no
    say."""
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
