"""Where a series changed: the search for change points in the readings of one series in one environment.

A walk through history compares the readings at and behind each commit with the level before it, as Perfherder's
windowed test does, but by medians and by the noise between runs, and by all of an interval (low, median and high end
must shift together; a run that was disturbed mostly stretches it). Levels that the series had visited before and left
again are no change, so kernels that settle on one of two speeds per process raise no alarm. The last commit is judged
by what there is; as later readings come, what did not stay is no change any more, and smaller shifts are seen.

Everything is a pure function of the readings in their order: whichever order they arrived in, the same readings have
the same changes. The walk starts anew in every block of BLOCK commits, so that a new reading concerns the changes of
its own and of neighbouring blocks only; `span` says which readings are needed to find them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import exp, hypot, log, pi, sqrt
from statistics import median, median_high, median_low

from warpwatch.server.verdicts.noise import PRIOR_WEIGHT, Reading, deviation, shrink, width
from warpwatch.server.verdicts.thresholds import ShiftRule, thresholds_of

BLOCK = 128
"""Commits after which the walk starts anew, one block ahead."""
WINDOW = 48
"""Readings of the past that the noise is taken from."""
LEVEL = 16
"""Readings of the past that the level is taken from: a slow drift is no change."""
AFTER = 8
"""Readings from a change on that its new level is taken from, when there are so many."""
USUAL_WIDTH = 1.5
"""How many times the usual interval a reading may have; what is wider counts as uncertainty between runs."""
SAME_LEVEL = 0.7, 1.3
"""Readings of the past that lie at so much of a shift were at the new level before."""
SETTLED = 8
"""Readings after which a level is known. Until then a return to where the series was before must last for as many."""
LONGER = 3
"""How many times as long as on an earlier visit a series must stay at a level that is to be its own."""
SELDOM = 8
"""One reading in so many may be elsewhere and not end a stay."""
LEAST_SHARE = 0.7
"""Share of the deviation between runs that any number of readings leaves: neighbouring runs are not independent."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of level between two neighbouring readings: their indices, and head over base level.

    score: its size over what the rule for alarms asks for; from 1 on, history alone says that it is one.
    """

    base: int
    head: int
    ratio: float
    score: float


def find_changes(
    readings: Sequence[Reading], device_kind: str, rule: ShiftRule | None = None, around: int | None = None
) -> list[Change]:
    """The changes in readings of one series in one environment, sorted by ordinal and order of measuring.

    device_kind: cuda | cpu. rule: how large a shift must be. The default is the rule for suspicions, so small that a
    comparison has to confirm it; the rule for alarms is for verdicts from history alone. around: only what a reading at
    this ordinal may have changed is looked for.
    """
    walk = _Walk(readings, device_kind, rule or thresholds_of(device_kind).suspicion)
    changes: list[Change] = []
    for warm_up, first, end in _blocks(readings, around):
        changes += [change for change in walk.changes(warm_up, end) if first <= change.head < end]
    return changes


def span(ordinal: int) -> tuple[int, int]:
    """First and last ordinal of the readings that find_changes needs to look around `ordinal`."""
    block = ordinal // BLOCK
    return max(0, (block - 2) * BLOCK), (block + 3) * BLOCK - 1


def _blocks(readings: Sequence[Reading], around: int | None) -> Iterator[tuple[int, int, int]]:
    """Indices where the walk of a block starts, and where the block itself does and ends."""
    ordinals = [reading.ordinal for reading in readings]
    for block in sorted({ordinal // BLOCK for ordinal in ordinals}):
        if around is None or abs(block - around // BLOCK) <= 1:
            warm_up, first, end = (bisect_left(ordinals, (block + offset) * BLOCK) for offset in (-1, 0, 1))
            yield warm_up, first, end


class _Walk:
    """A walk along readings in log time, which knows since when the level is what it is, and what noise to expect."""

    def __init__(self, readings: Sequence[Reading], device_kind: str, rule: ShiftRule) -> None:
        self.lows = [log(reading.low_ns) for reading in readings]
        self.medians = [log(reading.median_ns) for reading in readings]
        self.highs = [log(reading.high_ns) for reading in readings]
        self.widths = [width(reading) for reading in readings]
        self.commits = [reading.commit_id for reading in readings]
        self.rule = rule
        thresholds = thresholds_of(device_kind)
        self.alarm, self.level_readings = thresholds.alarm, thresholds.level_readings
        self.usual = thresholds.prior_between, PRIOR_WEIGHT
        self.start, self.prior = 0, self.usual

    def changes(self, start: int, end: int) -> Iterator[Change]:
        """Changes with a head from `start` to `end`, each against the level since the one before it."""
        self.start, self.prior = start, self.usual
        head, last = start + self.level_readings, len(self.commits)
        while head < end:
            change = (
                self._change_at(head, min(head + AFTER, last)) if self.commits[head] != self.commits[head - 1] else None
            )
            if change is None:
                head += 1
                continue
            yield change
            past = self.medians[max(self.start, change.head - WINDOW) : change.head]
            self.prior = shrink(deviation(past), len(past), *self.prior), min(len(past) + self.prior[1], SETTLED)
            self.start, head = change.head, change.head + self.level_readings

    def _change_at(self, head: int, end: int) -> Change | None:
        """The change between the level before `head` and that of the readings from `head` to `end`; None when noise may
        explain it."""
        if head - self.start < self.rule.least_before and end - head < SETTLED // 2:
            return None
        level, now = median(self.medians[max(self.start, head - LEVEL) : head]), median(self.medians[head:end])
        sign = 1 if now > level else -1
        if abs(exp(now) - exp(level)) < self.rule.least_ns or sign * (now - level) < self.rule.least:
            return None
        stretched = self._stretched(head, end)
        score = float("inf")
        for values in (self.medians, self.lows, self.highs):
            shift, spread = self._size(values, head, end, sign, stretched)
            if shift < self.rule.threshold(spread):
                return None
            score = min(score, shift / self.alarm.threshold(spread))
        if self._known(head, level, now):
            return None
        border = self._border(head, end, level, now)
        return Change(border - 1, border, exp(now - level), score)

    def _stretched(self, head: int, end: int) -> float:
        """How much wider the intervals of the new readings are than this series' usually are."""
        return max(
            0.0,
            median(self.widths[head:end]) - USUAL_WIDTH * median(self.widths[max(self.start, head - WINDOW) : head]),
        )

    def _size(self, values: Sequence[float], head: int, end: int, sign: int, stretched: float) -> tuple[float, float]:
        """The shift of one end of the interval, and the deviation that noise gives it."""
        past, new = values[max(self.start, head - WINDOW) : head], values[head:end]
        shift = (median_low(new) if sign > 0 else median_high(new)) - median(past[-LEVEL:])
        spread = hypot(shrink(deviation(past), len(past), *self.prior), stretched)
        return sign * shift, spread * _share(min(len(past), LEVEL), len(new))

    def _known(self, head: int, level: float, now: float) -> bool:
        """Whether the readings from `head` on are at a level that is none of its own yet.

        The series may have come there before and left again, and has not stayed for much longer than then; or it only
        went back there, from a level that was its own for a short time.
        """
        first, stay = max(0, head - WINDOW), self._stay(head, level, now)
        there = [_there(value, level, now) for value in self.medians[first:head]]
        since = there[max(0, self.start - first) :]
        settled = len(since) >= SETTLED
        if not settled and any(there) and stay < SETTLED:
            return True
        visits = [len(list(group)) for inside, group in groupby(since) if inside]
        if visits and since[0] and settled:
            del visits[0]  # It began there, and did not come.
        return bool(visits) and stay <= LONGER * max(visits)

    def _stay(self, head: int, level: float, now: float) -> int:
        """How long from `head` on the readings are at the new level, but for one in SELDOM and one more."""
        missed = 0
        for index in range(head, min(head + WINDOW, len(self.medians))):
            missed += not _there(self.medians[index], level, now)
            if missed > 1 + (index - head) // SELDOM:
                return index - head
        return min(head + WINDOW, len(self.medians)) - head

    def _border(self, head: int, end: int, level: float, now: float) -> int:
        """The index from `head` on at which two constant levels fit the readings best, by absolute deviations; first of
        a commit."""
        best, cost, least = head, 0.0, 0.0
        for index in range(head, end - 1):
            cost += abs(self.medians[index] - level) - abs(self.medians[index] - now)
            if cost < least and self.commits[index + 1] != self.commits[index]:
                best, least = index + 1, cost
        return best


def _there(value: float, level: float, now: float) -> bool:
    """Whether a reading is at the new level rather than at the old one."""
    return SAME_LEVEL[0] < (value - level) / (now - level) < SAME_LEVEL[1]


def _share(before: int, after: int) -> float:
    """Deviation of the difference of two levels, as a share of that of one reading and a level of many."""
    return max(LEAST_SHARE, sqrt((1 / after + pi / 2 / before) / (1 + pi / 2 / LEVEL)))
