"""A series that became slower by steps too small to be suspected one by one: held against the best level it had."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import median, quantiles

from warpwatch.server.verdicts.changes import LEVEL
from warpwatch.server.verdicts.thresholds import ShiftRule


def find_creep(times_ns: Sequence[float], rule: ShiftRule, spread: float) -> tuple[int, float] | None:
    """The last commit of the best level, and the newest level over it, where the series is slower by more than the rule
    asks of a single reading.

    times_ns: what a series reads at neighbouring commits, without a change of level among them. spread: the deviation
    of one reading. Levels are medians of LEVEL commits; of two speeds each level holds both, so their middle halves
    must lie apart.
    """
    if len(times_ns) < 2 * LEVEL:
        return None
    first = min(range(len(times_ns) - 2 * LEVEL + 1), key=lambda start: median(times_ns[start : start + LEVEL]))
    best, newest = times_ns[first : first + LEVEL], times_ns[-LEVEL:]
    ratio = median(newest) / median(best)
    is_apart = quantiles(newest, n=4)[0] > quantiles(best, n=4)[2]
    is_large = median(newest) - median(best) >= rule.least_ns and log(ratio) >= rule.threshold(spread)
    return (first + LEVEL - 1, ratio) if is_apart and is_large else None
