"""Where a series changed: the search for change points in the readings of one series in one environment.

A walk through history compares the readings at and behind each commit with the level before it, as Perfherder's
windowed test does, but by medians and by the noise between runs, and by all of an interval (low, median and high end
must shift together; a run that was disturbed mostly stretches it). Levels that the series had visited before and left
again are no change, so kernels that settle on one of two speeds per process raise no alarm. The last commit is judged
by what there is; as later readings come, what did not stay is no change any more, and smaller shifts are seen.

Everything is a pure function of the readings: all readings of one commit count as one, so whichever order they arrived
in, the same readings have the same changes. The walk starts anew in every block of BLOCK commits, so that a new reading
concerns the changes of its own and of neighbouring blocks only; `span` says which readings are needed to find them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from math import exp, hypot, log, pi, sqrt
from statistics import median, median_high, median_low

from warpwatch.server.verdicts.noise import PRIOR_WEIGHT, Reading, deviation, merge_repeats, shrink, width
from warpwatch.server.verdicts.thresholds import REPORTED, ShiftRule, thresholds_of

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
SHOWN = 4
"""Readings from a change on whose medians show by themselves how far they scatter: from then on reported intervals,
which may be the range of all samples, say nothing."""
SETTLED = 8
"""Readings after which a level is known. Until then a return to where the series was before must last for as many."""
LONGER = 3
"""How many times as long as on an earlier visit a series must stay at a level that is to be its own."""
SELDOM = 8
"""One reading in so many may be elsewhere and not end a stay."""
SWITCHES = 3
"""Visits to the new level before a change, and returns to the old one after it, from which on it has two speeds."""
EDGE = 3
"""Readings by which the named range may reach over the place where two levels fit best."""
LEAST_SHARE = 0.7
"""Share of the deviation between runs that any number of readings leaves: neighbouring runs are not independent."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of level between two readings: their indices, and head over base level.

    The last reading of the commit `base` is at the old level, and the first one of `head` at the new one. Commits
    between them are at neither: one of them may have changed it, or `head`. border: where two levels fit best.

    score: its size over what the rule for alarms asks for; from 1 on, history alone says that it is one.
    """

    base: int
    head: int
    border: int
    ratio: float
    score: float


def find_changes(
    readings: Sequence[Reading], time_kind: str, rule: ShiftRule | None = None, around: int | None = None
) -> list[Change]:
    """The changes in readings of one series in one environment, sorted by ordinal, those of a commit side by side.

    time_kind: see thresholds.kind_of_time. rule: how large a shift must be. The default is the rule for suspicions, so
    small that a comparison has to confirm it; the rule for alarms is for verdicts from history alone. around: only what
    a reading at this ordinal may have changed is looked for.
    """
    repeats = [list(group) for _, group in groupby(readings, key=lambda reading: reading.commit_id)]
    first_of = [0, *accumulate(map(len, repeats))]
    levels = [merge_repeats(group) for group in repeats]
    walk = _Walk(readings, levels, first_of, time_kind, rule or thresholds_of(time_kind).suspicion)
    changes: list[Change] = []
    for warm_up, first, end in _blocks(levels, around):
        changes += [change for change in walk.changes(warm_up, end) if first <= change.border < end]
    return [
        replace(item, base=first_of[item.base + 1] - 1, head=first_of[item.head], border=first_of[item.border])
        for item in changes
    ]


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
    """A walk along the readings of commits in log time, which knows since when the level is what it is, and what noise
    to expect."""

    def __init__(
        self,
        readings: Sequence[Reading],
        levels: Sequence[Reading],
        first_of: Sequence[int],
        time_kind: str,
        rule: ShiftRule,
    ) -> None:
        self.levels, self.readings = _logs_of(levels), _logs_of(readings)
        self.medians, self.first_of = self.levels[0], first_of
        self.widths = [width(reading) for reading in levels]
        self.rule = rule
        thresholds = thresholds_of(time_kind)
        self.alarm, self.level_readings = thresholds.alarm, thresholds.level_readings
        self.usual = thresholds.prior_between, PRIOR_WEIGHT
        self.is_host_time, self.is_reported = not time_kind.startswith("cuda"), time_kind.endswith(REPORTED)
        self.start, self.prior = 0, self.usual
        self.judged: dict[tuple[int, int, tuple[float, float]], Change | None] = {}
        """By head, first reading of the past, and prior: walks of neighbouring blocks mostly agree in them."""

    def changes(self, start: int, end: int) -> Iterator[Change]:
        """Changes with a head from `start` to `end`, each against the level since the one before it."""
        self.start, self.prior = start, self.usual
        head, last = start + self.level_readings, len(self.medians)
        while head < end:
            key = head, max(self.start, head - WINDOW), self.prior
            if key not in self.judged:
                self.judged[key] = self._change_at(head, min(head + AFTER, last))
            change = self.judged[key]
            if change is None:
                head += 1
                continue
            yield change
            past = self._past(self.readings[0], change.border)
            self.prior = shrink(deviation(past), len(past), *self.prior), min(len(past) + self.prior[1], SETTLED)
            self.start, head = change.head, change.head + self.level_readings

    def _change_at(self, head: int, end: int) -> Change | None:
        """The change between the level before `head` and that of the readings from `head` to `end`; None when noise may
        explain it."""
        before, behind = (self.first_of[b] - self.first_of[a] for a, b in ((self.start, head), (head, end)))
        if before < self.rule.least_before and behind < SETTLED // 2:
            return None
        # Most commits end here, so the readings are sorted once for all of their medians.
        old = sorted(self.medians[max(self.start, head - LEVEL) : head])
        new = sorted(self.medians[head:end])
        level, now = _median(old), _median(new)
        sign = 1 if now > level else -1
        # Of two speeds the median may lie between, where no reading is; the nearer of both levels counts.
        upper, lower = (old, new) if sign > 0 else (new, old)
        high, low = upper[len(upper) // 2], lower[(len(lower) - 1) // 2]
        nearer = (high, low) if sign > 0 else (low, high)
        if sign * (nearer[1] - nearer[0]) < self.rule.least or abs(exp(now) - exp(level)) < self.rule.least_ns:
            return None
        if self._is_known(head, *nearer):
            return None
        is_shown = self.is_reported and end - head >= SHOWN
        is_apart = self.is_reported and self._is_apart(head, end, sign)
        stretched = 0.0 if is_shown else self._stretched(head, end)
        score, most = float("inf"), float("inf")
        for levels, readings in [*zip(self.levels, self.readings, strict=True)][: 1 if is_shown else 3]:
            old, new = levels[max(self.start, head - LEVEL) : head], levels[head:end]
            shift = sign * ((median_low(new) if sign > 0 else median_high(new)) - median(old))
            spread = min(most, self._spread(self._past(readings, head), stretched) * _share(len(old), len(new)))
            if self.is_reported:
                # The ends come from few samples, or are a range: they must shift, but their own scatter says little.
                most = spread
            if shift < self.rule.threshold(spread) and not is_apart:
                return None
            score = min(score, shift / self.alarm.threshold(spread))
        border = self._border(head, end, level, now)
        base, first = self._range(border, end, level, now)
        return Change(base, first, border, exp(now - level), max(score, 1.0) if is_apart else score)

    def _is_apart(self, head: int, end: int, sign: int) -> bool:
        """Whether each of many readings from `head` on lies beyond each of many before it, by what an alarm asks for at
        least: however far the ones before it scatter, noise does not do that."""
        old, new = self.medians[max(self.start, head - LEVEL) : head], self.medians[head:end]
        if len(old) < SETTLED or len(new) < AFTER:
            return False
        return (min(new) - max(old) if sign > 0 else min(old) - max(new)) > self.alarm.least

    def _stretched(self, head: int, end: int) -> float:
        """How much wider the intervals of the new readings are than this series' usually are."""
        return max(
            0.0,
            median(self.widths[head:end]) - USUAL_WIDTH * median(self.widths[max(self.start, head - WINDOW) : head]),
        )

    def _past(self, values: Sequence[float], head: int) -> Sequence[float]:
        """Of all readings, those of the commits before `head` that the noise is taken from."""
        return values[self.first_of[max(self.start, head - WINDOW)] : self.first_of[head]]

    def _spread(self, past: Sequence[float], stretched: float) -> float:
        """The deviation that noise gives a new reading."""
        return hypot(shrink(deviation(past), len(past), *self.prior), stretched)

    def _is_known(self, head: int, level: float, now: float) -> bool:
        """Whether the readings from `head` on are at a level that is none of its own yet.

        The series may have come there before and left again, and has not stayed for much longer than then; or it only
        went back there, from a level that was its own for a short time; or it goes back and forth between the two.
        """
        first, stay = max(0, head - WINDOW), _stay(_is_at(self.medians[head : head + WINDOW], level, now))
        there = _is_at(self.medians[first:head], level, now)
        since = there[max(0, self.start - first) :]
        settled = len(since) >= SETTLED
        if not settled and stay < SETTLED and any(there):
            return True
        # How many readings each visit to the level lasted.
        visits = [len(list(group)) for inside, group in groupby(since) if inside]
        if visits and since[0] and settled:
            del visits[0]  # It began there, and did not come.
        if visits and stay <= LONGER * max(visits):
            return True
        stays = [*_stays(there), *_stays(_is_at(self.medians[head + 1 : head + WINDOW], now, level))]
        return len(stays) >= SWITCHES and stay <= LONGER * max(stays)

    def _border(self, head: int, end: int, level: float, now: float) -> int:
        """The index from `head` on at which two constant levels fit the readings best, by absolute deviations.

        Other work on a host makes a run slower and never faster, so there a reading above a level counts as half a
        shift at most: an outlier right before a step to slower is an outlier of the old level. For the same reason a
        step that is soon undone would begin after its end, from where on no reading is at the new level.
        """
        best, cost, least = head, 0.0, 0.0
        is_new = _is_at(self.medians[head:end], level, now)
        most = abs(now - level) / 2 if self.is_host_time else float("inf")
        for index in range(head, end - 1):
            old, new = (min(self.medians[index] - at, most) for at in (level, now))
            cost += abs(old) - abs(new)
            if cost < least and True in is_new[index + 1 - head :]:
                best, least = index + 1, cost
        return best

    def _range(self, border: int, end: int, level: float, now: float) -> tuple[int, int]:
        """The last reading before a border that is at the old level, and the first one from there on at the new one.

        A reading at neither level may be an outlier of either, so that the change may lie on both of its sides.
        """
        base, head = border - 1, border
        before = _is_at(self.medians[max(self.start, base - EDGE) : border], now, level)[::-1]
        behind = _is_at(self.medians[border : min(end, border + EDGE + 1)], level, now)
        if True in before:
            base -= before.index(True)
        if True in behind:
            head += behind.index(True)
        return base, head


def _logs_of(readings: Sequence[Reading]) -> tuple[list[float], list[float], list[float]]:
    """Log times: medians, low ends and high ends."""
    medians = [log(reading.median_ns) for reading in readings]
    return medians, [log(reading.low_ns) for reading in readings], [log(reading.high_ns) for reading in readings]


def _median(ordered: Sequence[float]) -> float:
    """The median of sorted values."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _is_at(values: Sequence[float], level: float, now: float) -> list[bool]:
    """Which readings are at the level `now` rather than at the other one."""
    low, high = sorted(level + share * (now - level) for share in SAME_LEVEL)
    return [low < value < high for value in values]


def _stay(there: Sequence[bool]) -> int:
    """How long readings stay at a level from the first one on, but for one in SELDOM and one more."""
    missed = 0
    for index, is_there in enumerate(there):
        missed += not is_there
        if missed > 1 + index // SELDOM:
            return index
    return len(there)


def _stays(there: Sequence[bool]) -> list[int]:
    """How long readings stayed at a level each time that they came there, with the same exceptions."""
    stays, index = [], 0
    while index < len(there):
        if there[index]:
            stays.append(_stay(there[index:]))
        index += stays[-1] if there[index] else 1
    return stays


def _share(before: int, after: int) -> float:
    """Deviation of the difference of two levels, as a share of that of one reading and a level of many."""
    return max(LEAST_SHARE, sqrt((1 / after + pi / 2 / before) / (1 + pi / 2 / LEVEL)))
