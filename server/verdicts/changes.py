"""Where a series changed: the search for change points in the readings of one series in one environment.

A walk through history compares the readings at and behind each commit with the level before it, as Perfherder's windowed test does,
but by medians and by the noise between runs, and by all of an interval (low, median and high end must shift together; a run that was
disturbed mostly stretches it). Levels that the series had visited before and left again are no change, so kernels that settle on one
of two speeds per process raise no alarm. The last commit is judged by what there is; as later readings come, what did not stay is no
change any more, and smaller shifts are seen.

Everything is a pure function of the readings in their order: whichever order they arrived in, the same readings have the same changes.
The walk starts anew in every block of BLOCK commits, so that a new reading concerns the changes of its own and of neighbouring blocks
only; `span` says which readings are needed to find them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import exp, hypot, log, pi, sqrt
from statistics import median, median_high, median_low

from server.verdicts.noise import PRIOR_BETWEEN, PRIOR_WEIGHT, SUSPICION, Reading, Rule, deviation, shrink, width

BLOCK = 256
"""Commits after which the walk starts anew, one block ahead."""
WINDOW = 48
"""Readings of the past that the noise is taken from."""
LEVEL = 16
"""Readings of the past that the level is taken from: a slow drift is no change."""
AFTER = 8
"""Readings from a change on that its new level is taken from, when there are so many."""
LEAST_BEFORE = 3
"""Readings without which there is no level to change from."""
USUAL_WIDTH = 1.5
"""How many times the usual interval a reading may have; what is wider counts as uncertainty between runs."""
SAME_LEVEL = 0.7, 1.3
"""Readings of the past that lie at so much of a shift were at the new level before."""
SETTLED = 8
"""Readings after which a level is known. Until then a return to where the series was before must last for half as many."""
LONGER = 3
"""How many times as long as on an earlier visit a series must stay at a level that is to be its own."""
LEAST_SHARE = 0.4
"""Share of the deviation between runs that any number of readings leaves: neighbouring runs are not independent."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of level between two neighbouring readings: their indices, head over base level, and its size over what was needed."""

    base: int
    head: int
    ratio: float
    score: float


@dataclass(frozen=True, slots=True)
class _Logs:
    """The readings in log time: low end, median and high end of each interval, its width, and the commit."""

    ends: tuple[list[float], list[float], list[float]]
    widths: list[float]
    commits: list[int]


def find_changes(readings: Sequence[Reading], device_kind: str, rule: Rule | None = None) -> list[Change]:
    """The changes in readings of one series in one environment, sorted by ordinal and order of measuring.

    device_kind: cuda | cpu. rule: how large a shift must be; by default so small that a comparison has to confirm it (SUSPICION),
    while ALARM is for verdicts from history alone.
    """
    rule = rule or SUSPICION[device_kind]
    logs = _Logs(
        ([log(one.low_ns) for one in readings], [log(one.median_ns) for one in readings], [log(one.high_ns) for one in readings]),
        [width(one) for one in readings],
        [one.commit_id for one in readings],
    )
    found: list[Change] = []
    for warm_up, first, end in _blocks(readings):
        found += [
            change
            for change in _walk(logs, warm_up, end, rule, (PRIOR_BETWEEN[device_kind], PRIOR_WEIGHT))
            if first <= change.head < end
        ]
    return found


def span(ordinal: int) -> tuple[int, int]:
    """First and last ordinal of the readings that find_changes needs for the changes that a reading at `ordinal` may touch."""
    block = ordinal // BLOCK
    return max(0, (block - 2) * BLOCK), (block + 3) * BLOCK - 1


def _blocks(readings: Sequence[Reading]) -> Iterator[tuple[int, int, int]]:
    """Indices where the walk of a block starts, and where the block itself does and ends."""
    ordinals = [one.ordinal for one in readings]
    for block in sorted({ordinal // BLOCK for ordinal in ordinals}):
        warm_up, first, end = (bisect_left(ordinals, (block + offset) * BLOCK) for offset in (-1, 0, 1))
        yield warm_up, first, end


def _walk(logs: _Logs, start: int, end: int, rule: Rule, prior: tuple[float, float]) -> Iterator[Change]:
    """Changes with a head from `start` to `end`, each against the level since the one before it."""
    head, last = start + LEAST_BEFORE, len(logs.commits)
    while head < min(end, last):
        if logs.commits[head] == logs.commits[head - 1]:
            head += 1
            continue
        change = _change(logs, start, head, min(head + AFTER, last), rule, prior)
        if change is None:
            head += 1
            continue
        yield change
        past = logs.ends[1][max(start, change.head - WINDOW) : change.head]
        prior = shrink(deviation(past), len(past), *prior), min(len(past) + prior[1], SETTLED)
        start, head = change.head, change.head + LEAST_BEFORE


def _change(logs: _Logs, start: int, head: int, end: int, rule: Rule, prior: tuple[float, float]) -> Change | None:
    """The change between the level before `head` and that of the readings from `head` to `end`; None when noise may explain it."""
    level, now = median(logs.ends[1][max(start, head - LEVEL) : head]), median(logs.ends[1][head:end])
    sign = 1 if now > level else -1
    if sign * (now - level) < rule.least or abs(exp(now) - exp(level)) < rule.least_ns:
        return None
    usual = median(logs.widths[max(start, head - WINDOW) : head])
    stretched = max(0.0, median(logs.widths[head:end]) - USUAL_WIDTH * usual)
    score = min(_score(values, start, head, end, sign, stretched, rule, prior) for values in logs.ends)
    if score < 1 or _known(logs.ends[1][max(0, head - WINDOW) : head], head - start, end - head, level, now):
        return None
    border = _border(logs, head, end, level, now)
    return Change(border - 1, border, exp(now - level), score)


def _score(
    values: Sequence[float], start: int, head: int, end: int, sign: int, stretched: float, rule: Rule, prior: tuple[float, float]
) -> float:
    """The shift of one end of the interval over what the rule asks for."""
    past, new = values[max(start, head - WINDOW) : head], values[head:end]
    cautious = median_low(new) if sign > 0 else median_high(new)
    shift = sign * (cautious - median(past[-LEVEL:]))
    spread = hypot(shrink(deviation(past), len(past), *prior), stretched)
    return shift / rule.threshold(spread * _share(min(len(past), LEVEL), len(new)))


def _share(before: int, after: int) -> float:
    """Deviation of the difference of two levels, as a share of that of one reading and a level of many."""
    return max(LEAST_SHARE, sqrt((1 / after + pi / 2 / before) / (1 + pi / 2 / LEVEL)))


def _known(past: Sequence[float], settled: int, new: int, level: float, now: float) -> bool:
    """Whether the `new` readings are at a level that is none of its own yet.

    The series may have come there before and left again, and has not stayed for much longer than then; or it only went back there,
    from where it was for `settled` readings.
    """
    there = [SAME_LEVEL[0] < (value - level) / (now - level) < SAME_LEVEL[1] for value in past]
    if settled < SETTLED and new < SETTLED // 2 and any(there[:-settled]):
        return True
    away = [len(list(group)) for inside, group in groupby(there[-settled:]) if inside]
    if away and there[-settled]:
        del away[0]  # It began there, and did not come.
    return bool(away) and new <= LONGER * max(away)


def _border(logs: _Logs, head: int, end: int, level: float, now: float) -> int:
    """The index from `head` on at which two constant levels fit the readings best, by absolute deviations; first of a commit."""
    values = logs.ends[1]
    best, cost, least = head, 0.0, 0.0
    for index in range(head, end - 1):
        cost += abs(values[index] - level) - abs(values[index] - now)
        if cost < least and logs.commits[index + 1] != logs.commits[index]:
            best, least = index + 1, cost
    return best
