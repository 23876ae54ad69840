"""What paired rounds say of a change that nobody suspected: a commit held against its base, many variants and cases at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from server.verdicts.paired import CONFIDENCE, CONFIRM_RATIO, median_interval

Told = Literal["slower", "faster", "same", "unsure"]

WORTH_RATIO = {"cuda": 1.02, "cpu": 1.05}
"""A slow-down that has to be excluded before two commits are called the same, per device kind."""
LEAST_NS = 50.0
"""Least absolute change: below it a timer, not a kernel, may have changed."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the rounds say, and the median of head over base with its interval; None where there were no rounds."""

    told: Told
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def hold(base_ns: Sequence[float], head_ns: Sequence[float], device_kind: str, among: int = 1) -> Held:
    """What paired rounds say; base_ns[i] was taken beside head_ns[i]. device_kind: cuda | cpu.

    among: how many pairs are looked at together. A change is told with so much more confidence that all of them together hold a false
    one no more often than one of them would: the more is compared, the farther outside 1 its interval has to lie.
    """
    ratios = [head / base for base, head in zip(base_ns, head_ns, strict=True)]
    usual, strict = median_interval(ratios), _strict_interval(ratios, among)
    if usual is None or strict is None:
        return Held("unsure")
    least = CONFIRM_RATIO[device_kind]
    is_large = abs(median(head_ns) - median(base_ns)) >= LEAST_NS
    told: Told = "same"
    if is_large and strict[0] > least:
        told = "slower"
    elif is_large and strict[1] < 1 / least:
        told = "faster"
    elif usual[1] > WORTH_RATIO[device_kind] and usual[1] * median(base_ns) - median(base_ns) >= LEAST_NS:
        told = "unsure"
    return Held(told, median(ratios), *usual)


def _strict_interval(ratios: Sequence[float], among: int) -> tuple[float, float] | None:
    """The interval at the confidence that so many comparisons ask for; at the highest that these rounds allow where that is more."""
    wanted = 1 - (1 - CONFIDENCE) / max(among, 1)
    highest = 1 - 2.0 ** (1 - len(ratios)) if ratios else 0.0
    return median_interval(ratios, wanted) if wanted <= highest else (min(ratios), max(ratios)) if len(ratios) >= 6 else None
