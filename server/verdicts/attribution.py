"""Origin of a time change: code, toolchain, both or neither, by rounds of both commits under both toolchains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

from warpwatch.contract.rounds import CellRounds, early_ratio, interval_of_rounds
from warpwatch.contract.words import ChangeOrigin, Verdict
from warpwatch.server.verdicts.bisect import RangeAnswer, bounds, middle, suspects
from warpwatch.server.verdicts.thresholds import thresholds_of

FEWEST_ROUNDS = 6
"""With fewer rounds no interval holds the median in 95 of 100 cases, and nobody is blamed."""


@dataclass(frozen=True, slots=True)
class OriginEffect:
    """Effect of the commit alone, or of the toolchain alone, on the time: new over old with the 95 % interval.

    verdict: confirmed or dismissed, else unsure.
    """

    verdict: Verdict
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Attribution:
    """Where a change came from. total: head under the new toolchain over base under the old one."""

    origin: ChangeOrigin
    code: OriginEffect
    toolchain: OriginEffect
    total: OriginEffect


def attribute(rounds: CellRounds, device_kind: str) -> Attribution:
    """The origin of a change by rounds of four cells; device_kind: cuda | cpu.

    The effect of the code is its mean over both toolchains, and that of the toolchain its mean over both commits. So a
    change that needs both, such as a kernel that only the new compiler spills, is shared by both. Unknown where either
    effect is unsure, so that nobody is blamed by chance.
    """
    cells = list(zip(rounds.base_old, rounds.head_old, rounds.base_new, rounds.head_new, strict=True))
    code = _effect([sqrt(b * d / (a * c)) for a, b, c, d in cells], device_kind)
    toolchain = _effect([sqrt(c * d / (a * b)) for a, b, c, d in cells], device_kind)
    total = _effect([d / a for a, _, _, d in cells], device_kind)
    return Attribution(_origin(code.verdict, toolchain.verdict), code, toolchain, total)


def judge_toolchains(base_ns: Sequence[float], head_ns: Sequence[float], device_kind: str) -> OriginEffect:
    """Effect of the second of two toolchains on the time of one commit."""
    return _effect([head / base for base, head in zip(base_ns, head_ns, strict=True)], device_kind)


def _effect(ratios: Sequence[float], device_kind: str) -> OriginEffect:
    """Confirmed where the whole interval lies beyond the smallest change that a comparison confirms, either way;
    dismissed where it lies within, or holds 1 and excludes the least change that is expected."""
    interval, thresholds = interval_of_rounds(ratios), thresholds_of(device_kind)
    if interval is None or len(ratios) < FEWEST_ROUNDS:
        return OriginEffect(Verdict.UNSURE)
    low, high = interval
    least = early_ratio(thresholds.confirm_ratio, len(ratios))
    expected = thresholds.expected_ratio
    if low > least or high < 1 / least:
        verdict = Verdict.CONFIRMED
    elif (1 / least < low and high < least) or (1 / expected < low <= 1 <= high < expected):
        verdict = Verdict.DISMISSED
    else:
        verdict = Verdict.UNSURE
    return OriginEffect(verdict, median(ratios), low, high)


def _origin(code: Verdict, toolchain: Verdict) -> ChangeOrigin:
    if Verdict.UNSURE in (code, toolchain):
        return ChangeOrigin.UNKNOWN
    if code == toolchain:
        return ChangeOrigin.BOTH if code == Verdict.CONFIRMED else ChangeOrigin.NEITHER
    return ChangeOrigin.CODE if code == Verdict.CONFIRMED else ChangeOrigin.TOOLCHAIN


def search_places(count: int, changed: Callable[[int, int], bool | None]) -> tuple[int, int] | None:
    """Between which two of `count` ordered places a change lies: neighbours, unless what is between them cannot be
    measured. None where the ends do not differ.

    changed: whether the time differs between two places; None where that cannot be told. It is a bisection like that of
    commits, along toolchains, drivers or whatever else is in order.
    """
    first = changed(0, count - 1)
    if not first:
        return None
    answers, skipped = [RangeAnswer(0, count - 1, True)], set[int]()
    while True:
        places = suspects([place > 0 for place in range(count)], answers)
        base, _ = bounds(places)
        place = middle(places, skipped)
        if place is None:
            return bounds(places)
        answer = changed(base, place)
        if answer is None:
            skipped.add(place)
        else:
            answers.append(RangeAnswer(base, place, answer))
