"""Statistics of paired rounds: the interval of a median, when fewer rounds than planned decide a comparison, and
whether its controls let it decide anything.

The worker stops by this rule and the server decides by the same rule, so that both agree on every stored round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb, cos, exp, inf, log, pi, sin, sqrt, tan
from operator import truediv
from statistics import fmean, median, stdev

from warpwatch.contract.measurement import LAUNCH, expect_times
from warpwatch.contract.words import Reason

ROUNDS = 12
"""Paired rounds of a comparison that names no number: with fewer a small change cannot be told from noise."""
FEWEST_ROUNDS = 3
FEWEST_TO_EXCLUDE = 6
"""Rounds whose interval holds the median often enough to exclude a suspected ratio that is larger than they show."""
LOOKS = (3, 4, 6, 8, 10)
"""After how many rounds a comparison may end early. Every further look is one more chance of a false change."""
SURE = 0.9995
"""The confidence with which the scatter of the rounds must exclude 1 before they show a change early. The boundaries
below know no noise: they suppose that of a quiet device."""
_WIDEST = 100.0
"""Of an interval of log time, to either side: its ends are still numbers."""

CONFIRMED = {"cuda": 1.005, "cpu": 1.02}
"""The smallest change of the device's time that a comparison confirms, as a ratio, per device kind."""
CONFIRMED_LAUNCH, CONFIRMED_LAUNCH_NS = 1.05, 2_000
"""The same of `launch`: it must change by this ratio and by so many nanoseconds."""
_LARGEST_BOUND = 1.99
"""A bound as a ratio stays below 2, so that a launch that takes twice as long is a change however short it is."""


def launch_ratio(base_ns: Sequence[float]) -> float:
    """The smallest change of `launch` that a comparison confirms, as a ratio; base_ns: its rounds of the base."""
    share = CONFIRMED_LAUNCH_NS / median(base_ns) if base_ns else 0.0
    return min(max(CONFIRMED_LAUNCH, 1 + share), _LARGEST_BOUND)


def launch_seems_changed(base_ns: Sequence[float], head_ns: Sequence[float]) -> bool:
    """Whether the median of rounds of `launch` lies beyond the smallest change that is confirmed. Otherwise no rounds
    are taken for it alone: on a busy host it may take many to exclude every change."""
    bound = launch_ratio(base_ns)
    return bool(base_ns) and not 1 / bound < median(map(truediv, head_ns, base_ns)) < bound


def confirmed_ratio(device_kind: str, metric: str, base_ns: Sequence[float]) -> float:
    """The smallest change of this metric that a comparison confirms, as a ratio; base_ns: its rounds of the base."""
    return launch_ratio(base_ns) if metric == LAUNCH else CONFIRMED[device_kind]


def wait_share(device_kind: str, metric: str, base_ns: Sequence[float]) -> float:
    """The wait that a control adds to the base, as a share of its time: twice the smallest change that is confirmed, so
    that a comparison that could confirm that change finds the wait."""
    return 2 * (confirmed_ratio(device_kind, metric, base_ns) - 1)


@dataclass(frozen=True, slots=True)
class StopRule:
    """Ends a comparison early. earliest: rounds before which nothing but a plain change does. ratio: the change that
    must be shown, or excluded, as head over base or base over head. seconds: that rounds may take, whether they decide
    or not; None for as long as they need. suspected: the least change that a suspicion is about, likewise a ratio:
    rounds that allow for none and exclude this one end a comparison, too. plain: after how many rounds a plain change
    does; None for the fewest that have an interval."""

    earliest: int
    ratio: float
    seconds: float | None = None
    suspected: float | None = None
    plain: int | None = None

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
        if self.plain is not None and not FEWEST_ROUNDS <= self.plain <= LOOKS[-1]:
            raise ValueError(f"stop.plain: expected {FEWEST_ROUNDS} to {LOOKS[-1]} rounds, got {self.plain}")

    def to_words(self) -> str:
        """The rule as an option of the command line."""
        numbers = [self.earliest, self.ratio, self.seconds, self.suspected, self.plain]
        return ",".join("" if number is None else f"{number:g}" for number in numbers).rstrip(",")

    def of_metric(self, metric: str, base_ns: Sequence[float]) -> StopRule:
        """The rule for this metric of a comparison: `launch` has a ratio of its own, is looked at as often, and shows a
        change to no fewer rounds than a CPU does."""
        if metric != LAUNCH:
            return self
        ratio = launch_ratio(base_ns)
        suspected = None if self.suspected is None else max(self.suspected, ratio)
        return replace(self, ratio=ratio, suspected=suspected, plain=FEWEST_TO_EXCLUDE)

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
        if interval[0] > bound or interval[1] < 1 / bound:
            return exclude_chance(ratios)
        return not is_early and self.excludes_change(ratios)

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
        return [look for look in LOOKS if look >= self.earliest or look == (self.plain or FEWEST_ROUNDS)]

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

    def __post_init__(self) -> None:
        """ValueError for times that no device can show, and for rounds that lack a cell."""
        for name in ("base_old", "head_old", "base_new", "head_new"):
            expect_times(getattr(self, name), name)
            if len(getattr(self, name)) != len(self.base_old):
                raise ValueError(f"{name}: expected as many rounds as base_old has")

    @property
    def base_ns(self) -> list[float]:
        """The base in every round, as the geometric mean over both toolchains. Beside `head_ns` it shows what the code
        did, whatever the toolchains do."""
        return [sqrt(old * new) for old, new in zip(self.base_old, self.base_new, strict=True)]

    @property
    def head_ns(self) -> list[float]:
        """The head in every round, likewise."""
        return [sqrt(old * new) for old, new in zip(self.head_old, self.head_new, strict=True)]


def judge_controls(
    again: Sequence[float], waited: Sequence[float], confirmed: float, ratios: Sequence[float] = ()
) -> Reason | None:
    """The reason why the controls of a comparison invalidate it; None where the controls held, or are fewer than three.

    again: the base over itself in every round; waited: the base with a wait over the base. confirmed: the smallest
    change that the comparison confirms, see `confirmed_ratio`. ratios: the head over the base. Where the base differs
    from itself by as much as from the head, either way, the comparison shows no change.
    """
    moved, noticed = interval_of_rounds(again), interval_of_rounds(waited)
    bound = early_ratio(confirmed, max(1, len(again)))
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
    From FEWEST_TO_EXCLUDE rounds on it grows by the part that is about noise alone: a ratio of above CONFIRMED_LAUNCH
    says how few nanoseconds of a launch matter.
    """
    noise = ratio if count < FEWEST_TO_EXCLUDE else min(ratio, CONFIRMED_LAUNCH)
    return max(ratio, float(noise ** max(1.0, ROUNDS / count)))


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


def exclude_chance(ratios: Sequence[float]) -> bool:
    """Whether rounds as scattered as these would hardly lie all to one side of 1 if nothing had changed.

    The interval of their median cannot say so of a few: six rounds lie on one side in 3 of 100 cases, three in 25, and
    on a busy host they lie far away from 1 then. So their scatter must, or eleven rounds and more by their order.
    """
    intervals = scatter_interval(ratios, SURE), median_interval(ratios, SURE)
    return any(interval is not None and not interval[0] <= 1 <= interval[1] for interval in intervals)


def times_of_rounds(base_ns: Sequence[float], head_ns: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """The times (ns) of base and head to show beside the ratio of the rounds; None without rounds.

    The head's is the base's median times the median ratio: where times drift by more than the change, the median of its
    own times contradicts the ratio.
    """
    if not base_ns or not head_ns:
        return None, None
    base = median(base_ns)
    return base, base * median(head / base for base, head in zip(base_ns, head_ns, strict=True))


def scatter_interval(ratios: Sequence[float], confidence: float) -> tuple[float, float]:
    """The interval of the typical ratio from the standard deviation of the logarithms of two ratios or more."""
    logs = [log(ratio) for ratio in ratios]
    reach = student(1 - confidence, len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    middle, reach = fmean(logs), min(reach, _WIDEST)
    return exp(middle - reach), exp(middle + reach)


@lru_cache(4096)
def student(outside: float, freedom: int) -> float:
    """How many standard errors to either side leave that share outside, by Student's distribution.

    Found by bisection of the angle atan(t / √freedom), in which the probability is a finite sum (Abramowitz and Stegun,
    Handbook of Mathematical Functions, 26.7.3 and 26.7.4).
    """

    def inside(angle: float) -> float:
        is_odd = freedom % 2
        term = cos(angle) if is_odd else 1.0
        total = term if freedom > 1 else 0.0
        for step in range(2 + is_odd, freedom - 1, 2):
            term *= (step - 1) / step * cos(angle) ** 2
            total += term
        return 2 / pi * (angle + sin(angle) * total) if is_odd else sin(angle) * total

    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < 1 - outside else (low, middle)
    return tan(low) * sqrt(freedom)


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
