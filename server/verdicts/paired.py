"""What paired rounds say of two commits, and when two points of a history are worth them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, hypot, log
from statistics import median
from typing import Literal

Direction = Literal["slower", "faster"]
Decision = Literal["confirmed", "dismissed", "unsure"]

SUSPECT_RATIO = {"cuda": 1.05, "cpu": 1.10}
"""Least change between two points of a history that is worth a comparison, per device kind: runs of identical code on cores that
other programs use too differ by more than on a GPU."""
SUSPECT_NOISE = 3.0
"""How many times the uncertainty of both medians a change must exceed."""
SUSPECT_NS = 200.0
"""Least absolute change: below it a timer, not a kernel, may have changed."""
CONFIRM_RATIO = {"cuda": 1.005, "cpu": 1.02}
"""Least change that the whole interval of a comparison must lie beyond, per device kind."""
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Timing:
    """A median with its 95 % interval."""

    median_ns: float
    low_ns: float
    high_ns: float

    @property
    def uncertainty(self) -> float:
        """Half the interval, as a share of the median."""
        return (self.high_ns - self.low_ns) / (2 * self.median_ns)


@dataclass(frozen=True, slots=True)
class Decided:
    """What paired rounds say: the median of head over base with its interval, and whether that confirms the suspicion."""

    decision: Decision
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def suspect(base: Timing, head: Timing, device_kind: str) -> Direction | None:
    """The direction of a change that is worth a comparison; None when noise may explain it. device_kind: cuda | cpu."""
    slower, faster = max(base.median_ns, head.median_ns), min(base.median_ns, head.median_ns)
    threshold = max(log(SUSPECT_RATIO[device_kind]), SUSPECT_NOISE * hypot(base.uncertainty, head.uncertainty))
    intervals_touch = base.low_ns <= head.high_ns and head.low_ns <= base.high_ns
    if slower - faster < SUSPECT_NS or log(slower / faster) < threshold or intervals_touch:
        return None
    return "slower" if head.median_ns > base.median_ns else "faster"


def decide(
    base_ns: Sequence[float], head_ns: Sequence[float], direction: Direction, suspected_ratio: float, device_kind: str
) -> Decided:
    """What paired rounds say of a suspected change; base_ns[i] was taken beside head_ns[i]. device_kind: cuda | cpu.

    confirmed: the whole interval of the ratio lies beyond CONFIRM_RATIO in the suspected direction. dismissed: the whole interval
    stays below it, or it holds 1 and not the suspected ratio. unsure: anything else, too few rounds included.
    """
    ratios = [head / base for base, head in zip(base_ns, head_ns, strict=True)]
    interval = median_interval(ratios)
    if interval is None:
        return Decided("unsure")
    ratio, (low, high) = median(ratios), interval
    nearest, farthest, suspected = (
        (low, high, suspected_ratio) if direction == "slower" else (1 / high, 1 / low, 1 / suspected_ratio)
    )
    least = CONFIRM_RATIO[device_kind]
    if nearest > least:
        decision: Decision = "confirmed"
    elif farthest < least or (nearest <= 1 and farthest < suspected):
        decision = "dismissed"
    else:
        decision = "unsure"
    return Decided(decision, ratio, low, high)


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """The interval between two order statistics that holds the true median at least so often, whatever the distribution.

    None when there are too few values for any such interval (fewer than 6 at 95 %).
    """
    ordered, count = sorted(values), len(values)
    below, outside = 0, 0.0
    while True:
        outside += 2 * comb(count, below) / 2**count
        if outside > 1 - confidence or 2 * below >= count:
            break
        below += 1
    return (ordered[below - 1], ordered[count - below]) if below else None
