"""What paired rounds say of two commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Literal

from warpwatch.contract.measurement import ROUNDS as ROUNDS

TimeDirection = Literal["slower", "faster"]
Decision = Literal["confirmed", "dismissed", "unsure"]

CONFIRM_RATIO = {"cuda": 1.005, "cpu": 1.02}
"""Least change that the whole interval of a comparison must lie beyond, per device kind."""
CONFIDENCE = 0.95
MORE_ROUNDS, FEW_ROUNDS = 36, 6
"""Rounds of the second try of what was unsure, whose interval is about half as wide; of halving a plain change."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The median of head over base with its interval, and whether that confirms the suspicion."""

    decision: Decision
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def decide(
    base_ns: Sequence[float],
    head_ns: Sequence[float],
    direction: TimeDirection,
    suspected_ratio: float,
    device_kind: str,
) -> Decided:
    """What paired rounds say of a suspected change; base_ns[i] was taken beside head_ns[i]. device_kind: cuda | cpu.

    confirmed: the whole interval of the ratio lies beyond CONFIRM_RATIO in the suspected direction. dismissed: the
    whole interval stays below it, or it holds 1 and not the suspected ratio. unsure: anything else, too few rounds
    included.
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
    """The interval between two order statistics that holds the true median at least so often, whatever the
    distribution.

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
