"""Where a series changed: the search for change points in the readings of one series in one environment.

A pure function of the sorted readings, so whichever order they arrived in, the same readings have the same changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import median

from server.verdicts.noise import LEAST_SIGMAS, Noise, Reading, learn

WINDOW = 48
"""Readings of the past that a level is taken from: what lies further back is another time."""
AFTER = 5
"""Readings from a change on that its new level is taken from, when there are so many."""
LEAST_RATIO = {"cuda": 1.01, "cpu": 1.03}
"""Least change that is worth saying, per device kind."""
LEAST_NS = 200.0
"""Least absolute change: below it a timer, not a kernel, may have changed."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of level between two neighbouring readings: their indices, head over base level, and its size in deviations."""

    base: int
    head: int
    ratio: float
    score: float


def find_changes(readings: Sequence[Reading], device_kind: str) -> list[Change]:
    """The changes in readings of one series in one environment, sorted by ordinal and order of measuring. device_kind: cuda | cpu.

    The last reading is judged as soon as it is there. As later ones come, what did not stay is no change any more.
    """
    found: list[Change] = []
    start = 0
    for head in range(2, len(readings)):
        before = readings[max(start, head - WINDOW) : head]
        change = _change_at(before, readings[head : head + AFTER], head, device_kind)
        if change is not None and len(before) >= 2:
            found.append(change)
            start = head
    return found


def _change_at(before: Sequence[Reading], after: Sequence[Reading], head: int, device_kind: str) -> Change | None:
    """The change from `before` to `after`, where the reading `head` is the first of `after`; None when noise may explain it."""
    logs, new = [log(reading.median_ns) for reading in before], [log(reading.median_ns) for reading in after]
    level, now = median(logs), median(new)
    shift = now - level
    sign = 1 if shift > 0 else -1
    beyond = max(sign * value for value in logs)
    if (
        abs(shift) < log(LEAST_RATIO[device_kind])
        or abs(exp(now) - exp(level)) < LEAST_NS
        or sign * min(now, new[0], key=lambda x: sign * x) <= beyond
    ):
        return None
    score = abs(shift) / _deviation(learn(before, device_kind), len(before), len(after))
    return Change(head - 1, head, exp(shift), score) if score >= LEAST_SIGMAS else None


def _deviation(noise: Noise, before: int, after: int) -> float:
    """Standard deviation of the difference between a level of `before` and one of `after` readings."""
    return noise.total * sqrt(1 / before + 1 / after)
