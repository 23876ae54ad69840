"""Statistics of paired rounds: the interval of a median, when fewer rounds than planned decide a comparison, and
whether its controls let it decide anything.

The worker stops by this rule and the server decides by the same rule, so that both agree on every stored round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, inf
from statistics import median

from warpwatch.contract.words import Reason

ROUNDS = 12
"""Paired rounds of a comparison that names no number: with fewer a small change cannot be told from noise."""
FEWEST_ROUNDS = 3
FEWEST_TO_EXCLUDE = 6
"""Rounds whose interval holds the median often enough to exclude a suspected ratio that is larger than they show."""
LOOKS = (3, 4, 6, 8, 10)
"""After how many rounds a comparison may end early. Every further look is one more chance of a false change."""

CONFIRMED = {"cuda": 1.005, "cpu": 1.02}
"""The smallest change that a comparison confirms, as a ratio, per device kind."""
WAITS = {"cuda": 0.01, "cpu": 0.04}
"""The wait that a control adds to the base, as a share of its time: twice the smallest change that is confirmed, so
that a comparison that could confirm that change finds the wait."""


@dataclass(frozen=True, slots=True)
class StopRule:
    """Ends a comparison early. earliest: rounds before which nothing but a plain change does. ratio: the change that
    must be shown, or excluded, as head over base or base over head. seconds: that rounds may take, whether they decide
    or not; None for as long as they need. suspected: the least change that a suspicion is about, likewise a ratio:
    rounds that allow for none and exclude this one end a comparison, too."""

    earliest: int
    ratio: float
    seconds: float | None = None
    suspected: float | None = None

    def __post_init__(self) -> None:
        """ValueError for a rule that would end every comparison, or none."""
        if self.seconds is not None and not 0 < self.seconds < inf:
            raise ValueError(f"stop.seconds: expected a time above 0, got {self.seconds}")
        if not FEWEST_ROUNDS <= self.earliest <= LOOKS[-1]:
            raise ValueError(f"stop.earliest: expected {FEWEST_ROUNDS} to {LOOKS[-1]} rounds, got {self.earliest}")
        if not 1 < self.ratio < 2:
            raise ValueError(f"stop.ratio: expected a ratio above 1 and below 2, got {self.ratio}")
        if self.suspected is not None and not self.ratio <= self.suspected < 2:
            raise ValueError(f"stop.suspected: expected stop.ratio or more and below 2, got {self.suspected}")

    def to_words(self) -> str:
        """The rule as an option of the command line."""
        numbers = [self.earliest, self.ratio, self.seconds, self.suspected]
        return ",".join("" if number is None else f"{number:g}" for number in numbers).rstrip(",")

    def is_met(self, ratios: Sequence[float]) -> bool:
        """Whether these ratios, of head over base, end a comparison: it is looked at, and they decide it."""
        return len(ratios) in self._looks and self.decides(ratios)

    def decides(self, ratios: Sequence[float]) -> bool:
        """Whether these ratios show a change or exclude one that is worth confirming."""
        interval = interval_of_rounds(ratios)
        if interval is None:
            return False
        is_early = len(ratios) < self.earliest
        bound = (plain_ratio if is_early else early_ratio)(self.ratio, len(ratios))
        return interval[0] > bound or interval[1] < 1 / bound or (not is_early and self.excludes_change(ratios))

    def is_time_over(self, count: int, passed_seconds: float) -> bool:
        """Whether `count` rounds are the last, because another one of their length would end too late. The `earliest`
        rounds are always taken: fewer exclude nothing."""
        if self.seconds is None or count < self.earliest:
            return False
        return passed_seconds * (count + 1) / count > self.seconds

    def next_look(self, count: int) -> int | None:
        """After how many rounds it is asked again, once there are `count`; None after the last time."""
        return next((look for look in self._looks if look > count), None)

    @property
    def _looks(self) -> list[int]:
        return [look for look in LOOKS if look >= self.earliest or look == FEWEST_ROUNDS]

    def excludes_change(self, ratios: Sequence[float]) -> bool:
        """Whether no change that is worth confirming remains possible, or none at all is and the suspected one is
        not."""
        low, high = interval_of_rounds(ratios) or (0.0, inf)
        if low > 1 / self.ratio and high < self.ratio:
            return True
        if self.suspected is None or len(ratios) < FEWEST_TO_EXCLUDE:
            return False
        return 1 / self.suspected < low <= 1 <= high < self.suspected


@dataclass(frozen=True, slots=True)
class CellRounds:
    """Medians (ns) of rounds that measured the base and the head, each under the old and the new toolchain, beside one
    another."""

    base_old: list[float]
    head_old: list[float]
    base_new: list[float]
    head_new: list[float]


def judge_controls(
    again: Sequence[float], waited: Sequence[float], device_kind: str, ratios: Sequence[float] = ()
) -> Reason | None:
    """The reason why the controls of a comparison invalidate it; None where the controls held, or are fewer than three.

    again: the base over itself in every round; waited: the base with a wait over the base. ratios: the head over the
    base. Where the base differs from itself by as much as from the head, either way, the comparison shows no change.
    """
    moved, noticed = interval_of_rounds(again), interval_of_rounds(waited)
    bound = early_ratio(CONFIRMED[device_kind], max(1, len(again)))
    change = max(median(ratios), 1 / median(ratios)) if ratios else 1.0
    if moved is not None and change > bound and moved[0] <= 1 / change and change <= moved[1]:
        return Reason.CONTROL_MOVED
    if moved is not None and (moved[0] > bound or moved[1] < 1 / bound):
        return Reason.CONTROL_MOVED
    if noticed is not None and noticed[0] <= 1:
        return Reason.CONTROL_MISSED
    return None


def early_ratio(ratio: float, count: int) -> float:
    """The ratio that the interval of `count` rounds must lie beyond to show the change `ratio`.

    The fewer the rounds, the farther: the boundary of O'Brien and Fleming ("A multiple testing procedure for clinical
    trials", Biometrics 35, 1979), whose estimate after n of N looks must exceed N / n times that of the last look.
    """
    return float(ratio ** max(1.0, ROUNDS / count))


def plain_ratio(ratio: float, count: int) -> float:
    """The ratio that the interval of `count` rounds must lie beyond for the change to be plain: so far that it shows
    even where many pairs are compared and none is suspected, for which `count` rounds are too few otherwise."""
    return early_ratio(ratio, count) ** 2


def interval_of_rounds(ratios: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """The interval of the median ratio; of three to five rounds the smallest and the largest, None of fewer."""
    interval = median_interval(ratios, confidence)
    if interval is None and len(ratios) >= FEWEST_ROUNDS:
        return min(ratios), max(ratios)
    return interval


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
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
