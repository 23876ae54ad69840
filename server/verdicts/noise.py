"""How much the times of unchanged code differ, within a run and between runs, and so how small a change a series can
show.

Samples of one run do not describe the difference between runs: on public H100 series of identical code it is six to
seven times the interval inside a run. Both levels are therefore kept apart. All of it is in log time: noise there is a
share of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import expm1, fsum, log, sqrt
from statistics import median

from warpwatch.server.verdicts.thresholds import thresholds_of

NORMAL_MAD = 1.4826
"""Standard deviations in a median absolute deviation, of a normal distribution."""
NORMAL_INTERVAL = 2 * 1.96
"""Standard deviations in a 95 % interval."""
PRIOR_WEIGHT = 2.0
"""How many readings that expectation is worth."""
UNCERTAIN = 0.5
"""Over their number: by how much more than they show a few readings may scatter."""
BEYOND = 3.0
"""Deviations beyond the rule at which steps are said to be detectable: of such steps in public H100 series three in
four are found at once.

Of normal noise it would be nearly all; real noise has heavier tails.
"""
SURELY = 12.0
"""The same for nearly all: of such steps in public H100 series 95 of 100 are found at once."""
WIDEST = 3.0
"""Deviation of log time, a factor of 20, beyond which a series shows nothing; its thresholds would not be numbers."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One run's median of one series, with the interval its samples give. Durations in nanoseconds.

    ordinal: the commit's place in history. Several readings may have one commit: repeats, which teach the noise.
    """

    ordinal: int
    commit_id: int
    environment_id: int
    median_ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of log time between runs of unchanged code and within a run, from so many differences between
    runs."""

    between: float
    within: float
    differences: int = 0

    @property
    def spread(self) -> float:
        """Deviation of one reading. What runs differ by holds what one run is uncertain by."""
        return min(max(self.between, self.within), WIDEST)


def merge_repeats(readings: Sequence[Reading]) -> Reading:
    """The readings of one commit in one environment as a single one, whatever their order."""
    if len(readings) == 1:
        return readings[0]
    return replace(
        readings[0],
        median_ns=median(reading.median_ns for reading in readings),
        low_ns=median(reading.low_ns for reading in readings),
        high_ns=median(reading.high_ns for reading in readings),
    )


def learn(readings: Sequence[Reading], time_kind: str) -> Noise:
    """The noise of a series in one environment, from repeats of commits and from neighbours in history.

    time_kind: see thresholds.kind_of_time.

    Neighbours differ by noise save at the few changes, which a median ignores; repeats of one commit differ by noise
    alone. Their order does not matter.
    """
    levels, differences = [], []
    for _, group in groupby(readings, key=lambda reading: reading.commit_id):
        logs = [log(reading.median_ns) for reading in group]
        levels.append(median(logs))
        if len(logs) > 1:
            mean, scale = fsum(logs) / len(logs), sqrt(len(logs) / (len(logs) - 1))
            differences += [scale * abs(value - mean) for value in logs]
    differences += [abs(after - before) / sqrt(2) for before, after in pairwise(levels)]
    within = median(width(reading) for reading in readings) / NORMAL_INTERVAL if readings else 0.0
    seen = NORMAL_MAD * median(differences) if differences else 0.0
    return Noise(
        shrink(seen, len(differences), thresholds_of(time_kind).prior_between), within, max(0, len(readings) - 1)
    )


def shrink(seen: float, count: int, prior: float, weight: float = PRIOR_WEIGHT) -> float:
    """A deviation seen in `count` readings, drawn towards the expected one, which is worth `weight` readings."""
    return sqrt((count * seen**2 + weight * prior**2) / (count + weight))


def deviation(logs: Sequence[float]) -> float:
    """Standard deviation that outliers do not blow up: the smaller of the usual one and the one from absolute
    deviations.

    Where readings alternate between two levels, the usual one is the smaller. Few readings know it badly and are taken
    to scatter more.
    """
    if len(logs) < 2:
        return 0.0
    level, mean = median(logs), fsum(logs) / len(logs)
    usual = sqrt(fsum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
    robust = NORMAL_MAD * median([abs(value - level) for value in logs])
    return min(robust, usual) * (1 + UNCERTAIN / len(logs))


def width(reading: Reading) -> float:
    """The interval of a reading, as a share of it."""
    return log(reading.high_ns / reading.low_ns)


def detectable(noise: Noise, time_kind: str = "cuda", level_ns: float | None = None, beyond: float = BEYOND) -> float:
    """The least change (0.021 is 2.1 %) that a single new reading lets suspect, three times in four.

    time_kind: see thresholds.kind_of_time.

    level_ns: where the series is now, if the absolute floor is to count, too. beyond: SURELY for a change that is
    suspected 95 times in 100.
    """
    rule = thresholds_of(time_kind).suspicion
    relative = expm1(rule.threshold(noise.spread) + beyond * noise.spread)
    return max(relative, rule.least_ns / level_ns) if level_ns else relative


def is_blind(noise: Noise, time_kind: str) -> bool:
    """Whether a change that is worth knowing may hide in the times of a series.

    time_kind: see thresholds.kind_of_time.
    """
    return detectable(noise, time_kind) > thresholds_of(time_kind).worth_comparing
