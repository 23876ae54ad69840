"""How much the times of unchanged code differ, within a run and between runs, and so how small a change a series can show.

Samples of one run do not describe the difference between runs: on public H100 series of identical code it is six to seven times the
interval inside a run. Both levels are therefore kept apart. All of it is in log time: noise there is a share of the time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import exp, hypot, log, sqrt
from statistics import median

NORMAL_MAD = 1.4826
"""Standard deviations in a median absolute deviation, of a normal distribution."""
NORMAL_INTERVAL = 2 * 1.96
"""Standard deviations in a 95 % interval."""
PRIOR_BETWEEN = {"cuda": 0.008, "cpu": 0.03}
"""Deviation between runs that a series without history is taken to have, per device kind: the median of public H100 series re-run on
the same commit, and what two shared cores show."""
PRIOR_WEIGHT = 4.0
"""How many differences between runs that expectation is worth."""
LEAST_SIGMAS = 4.0
"""How many deviations off its past a single reading must lie."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One run's median of one series, with its interval. ordinal: the commit's place in history; several readings may have one commit."""

    ordinal: int
    commit_id: int
    environment_id: int
    median_ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of log time between runs of unchanged code and within a run, from so many differences between runs."""

    between: float
    within: float
    differences: int = 0

    @property
    def total(self) -> float:
        """Deviation of one new reading."""
        return hypot(self.between, self.within)


def split_environments(readings: Iterable[Reading]) -> dict[int, list[Reading]]:
    """The readings of each environment, in order of history: levels of two environments are never compared."""
    found: dict[int, list[Reading]] = defaultdict(list)
    for reading in sorted(readings, key=lambda reading: reading.ordinal):
        found[reading.environment_id].append(reading)
    return dict(found)


def learn(readings: Sequence[Reading], device_kind: str) -> Noise:
    """The noise of a series in one environment, from repeats of commits and from neighbours in history. device_kind: cuda | cpu.

    Neighbours differ by noise save at the few changes, which a median ignores; repeats of one commit differ by noise alone.
    """
    logs = [log(reading.median_ns) for reading in readings]
    differences = [abs(after - before) / sqrt(2) for before, after in pairwise(logs)]
    for _, repeats in groupby(readings, key=lambda reading: reading.commit_id):
        own = [log(reading.median_ns) for reading in repeats]
        differences += [abs(one - median(own)) * sqrt(len(own) / (len(own) - 1)) for one in own if len(own) > 1]
    within = median([log(reading.high_ns / reading.low_ns) for reading in readings] or [0.0]) / NORMAL_INTERVAL
    prior = PRIOR_BETWEEN[device_kind]
    if not differences:
        return Noise(prior, within)
    seen = NORMAL_MAD * median(differences)
    between = sqrt((len(differences) * seen**2 + PRIOR_WEIGHT * prior**2) / (len(differences) + PRIOR_WEIGHT))
    return Noise(between, within, len(differences))


def detectable(noise: Noise) -> float:
    """The least share (0.021 is 2.1 %) by which one new reading must differ from the series' level to be seen."""
    return exp(LEAST_SIGMAS * noise.total) - 1
