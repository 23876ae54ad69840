"""Scenarios in which suspicion on history once failed, each with a figure: see docs/decisions/change-detection.md.

Times are drawn with fixed seeds, so that a figure changes only when a rule does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp

from bench.detectors.known import answered
from bench.detectors.series import Series, with_step
from warpwatch.db.reads.judging import KnownChange
from warpwatch.db.reads.observed import ObservedReading
from warpwatch.server.verdicts.changes import Change, find_changes, span
from warpwatch.server.verdicts.known import KnownRegressions
from warpwatch.server.verdicts.noise import Reading
from warpwatch.server.verdicts.suspicion import SeriesWindow, find_candidates
from warpwatch.server.verdicts.thresholds import THRESHOLDS

LEVEL_NS = 1e6
QUIET = 0.004
"""Standard deviation of log time between runs, where a scenario is not about noise."""
INSIDE = 0.001
"""Half of the interval of a run, as a share of its median."""
NEAR = 3
"""Readings by which a change may miss its step and still be called misplaced rather than another one."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where changes were put that a step brought. named: the range holds the step. misplaced: a range up to NEAR
    readings off. readings: mean number of readings in which the named ranges say that the step may lie."""

    steps: int
    named: int
    misplaced: int
    readings: float

    def __str__(self) -> str:
        found = self.named + self.misplaced
        off = f"{self.misplaced / found:6.1%}" if found else "     –"
        return f"{self.named / self.steps:6.1%} named, {off} of the found put elsewhere, {self.readings:.2f} candidates"


def at(ordinal: int, shift: float, commit: int | None = None) -> Reading:
    """A reading `shift` of log time above the level."""
    middle = LEVEL_NS * exp(shift)
    commit_id = ordinal if commit is None else commit
    return Reading(ordinal, commit_id, 1, middle, middle * (1 - INSIDE), middle * (1 + INSIDE))


def line_up(shifts: Sequence[float]) -> list[Reading]:
    """One reading for each commit."""
    return [at(ordinal, shift) for ordinal, shift in enumerate(shifts)]


def alarms(readings: Sequence[Reading]) -> list[Change]:
    return find_changes(readings, "cuda", THRESHOLDS["cuda"].alarm)


# --- (a) a step beside an outlier -----------------------------------------------------------------------------


def place(cases: Sequence[tuple[Sequence[Reading], int]]) -> Placement:
    """cases: readings, and the index of the first one behind a step to slower."""
    named, misplaced, lengths = 0, 0, []
    for readings, head in cases:
        near = [change for change in alarms(readings) if change.ratio > 1 and abs(change.border - head) <= NEAR]
        right = [change for change in near if change.base < head <= change.head]
        named += bool(right)
        misplaced += bool(near) and not right
        lengths += [change.head - change.base for change in right[:1]]
    return Placement(len(cases), named, misplaced, sum(lengths) / max(len(lengths), 1))


def steps_after_outliers(count: int = 100, factor: float = 0.1) -> Placement:
    """Steps of 10 % right after one run that took 10 to 50 % longer for another reason."""
    cases = []
    for seed in range(count):
        draw = random.Random(f"outlier {seed}")
        shifts = [draw.gauss(0, QUIET) + (factor if index > 30 else 0) for index in range(60)]
        shifts[30] += draw.uniform(0.1, 0.5)
        cases.append((line_up(shifts), 31))
    return place(cases)


def steps_in(dataset: Sequence[Series], positions: Callable[[Series], list[int]], factor: float = 1.1) -> Placement:
    """Steps put into series that were measured."""
    return place([(with_step(one.readings, index, factor), index) for one in dataset for index in positions(one)])


# --- (d) repeats of a commit ----------------------------------------------------------------------------------


def order_of_repeats(count: int = 200, repeats: int = 5) -> float:
    """Share of series whose suspicions change when the repeats of every commit come in another order."""
    moved = 0
    for seed in range(count):
        draw = random.Random(f"repeats {seed}")
        groups = [
            [at(commit, draw.gauss(0, 0.01) + (0.03 if commit >= 20 else 0)) for _ in range(repeats)]
            for commit in range(40)
        ]
        seen = {
            tuple((round(change.ratio, 9), round(change.score, 9)) for change in find_changes(readings, "cuda"))
            for readings in ([one for group in groups for one in draw.sample(group, repeats)] for _ in range(2))
        }
        moved += len(seen) > 1
    return moved / count


# --- (e) and (g) two speeds -----------------------------------------------------------------------------------


def two_speeds(seed: str, length: int, apart: float, share: float, stay: float = 1.0) -> list[Reading]:
    """Readings of unchanged code at one of two speeds, `share` of them at the slower one; a speed lasts for `stay`
    readings more than by chance."""
    draw, slow, shifts = random.Random(seed), False, []
    for _ in range(length):
        if draw.random() < 1 / stay:
            slow = draw.random() < share
        shifts.append(draw.gauss(0, 0.003) + (apart if slow else 0.0))
    return line_up(shifts)


SPEEDS = {
    "60 readings, 35 % slow": (60, 0.35, 1.0),
    "300 readings, 35 % slow": (300, 0.35, 1.0),
    "300 readings, 50 % slow": (300, 0.5, 1.0),
    "300 readings, 15 % slow": (300, 0.15, 1.0),
    "300 readings, 50 % slow, in stays of 4": (300, 0.5, 2.0),
}


def false_changes_of_two_speeds(count: int = 100) -> dict[str, float]:
    """Share of series at two speeds 8 % apart that end with a change of level."""
    return {
        name: sum(bool(alarms(two_speeds(f"{name} {seed}", length, 0.08, share, stay))) for seed in range(count))
        / count
        for name, (length, share, stay) in SPEEDS.items()
    }


def steps_of_two_speeds(count: int = 100) -> dict[str, float]:
    """Share of steps of 20 % that are named in the same series."""
    shares = {}
    for name, (length, share, stay) in SPEEDS.items():
        cases = [
            (with_step(two_speeds(f"{name} {seed}", length, 0.08, share, stay), length // 2, 1.2), length // 2)
            for seed in range(count)
        ]
        shares[name] = place(cases).named / count
    return shares


def cost_of_two_speeds(count: int = 10_000, tries: int = 5) -> float:
    """Milliseconds to judge one more reading after `count` others at two speeds: the slowest of five series, each the
    fastest of some tries."""
    slowest = 0.0
    for seed in range(5):
        readings = two_speeds(f"cost {seed}", count, 0.08, 0.5, 1.0 + seed)
        first, last = span(count - 1)
        part, times = readings[max(0, first) : last + 1], []
        for _ in range(tries):
            start = time.thread_time()
            find_changes(part, "cuda", around=count - 1)
            times.append(time.thread_time() - start)
        slowest = max(slowest, min(times))
    return 1e3 * slowest


# --- (f) drift ------------------------------------------------------------------------------------------------


def drifting(seed: int, length: int = 300, total: float = 0.35) -> list[Reading]:
    """Readings that become slower by `total` in all, a little with each."""
    draw = random.Random(f"drift {seed}")
    return line_up([total * index / length + draw.gauss(0, QUIET) for index in range(length)])


# --- (h) as the service judges: one reading after another, and comparisons answer ------------------------------


def observed(reading: Reading) -> ObservedReading:
    sha = f"{reading.commit_id:040x}"
    times = reading.median_ns, reading.low_ns, reading.high_ns
    return ObservedReading(1, "v1", "n=1", reading.environment_id, reading.commit_id, sha, reading.ordinal, *times)


Answer = Callable[[int, int], tuple[int, int] | None]
"""The range that a comparison of two commits and its bisection end with; None where both are the same."""


def step_at(head: int) -> Answer:
    """The truth of a series that changed at one commit."""
    return lambda base, end: (head - 1, head) if base < head <= end else None


def same(base: int, head: int) -> None:
    """The truth of a series whose code never changed its times."""


def judge_along(readings: Sequence[Reading], answer: Answer, first: int = 8) -> list[KnownChange]:
    """The changes that the service suspects as readings come, and how they are decided. Comparisons answer before the
    next reading."""
    known: list[KnownChange] = []
    places = {reading.commit_id: place for place, reading in reversed(list(enumerate(readings)))}
    all_rows = [observed(replace(reading, ordinal=places[reading.commit_id])) for reading in readings]
    for end in range(first + 1, len(readings) + 1):
        rows = all_rows[max(0, end - 128) : end]
        window = SeriesWindow(rows, [], "cuda", rows[-1].commit_id)
        for item in find_candidates([window], KnownRegressions(known)):
            if item.cause != "history":
                continue
            ends = item.base_ordinal, item.head_ordinal
            direction, culprit = "slower" if item.ratio > 1 else "faster", answer(*ends)
            known.append(answered(len(known), direction, ends, culprit, [1], [] if culprit else [1]))
    return known


def is_confirmed(known: Sequence[KnownChange]) -> bool:
    return any(change.verdict == "confirmed" for change in known)


def judged_after_outliers(count: int = 100) -> Iterator[list[KnownChange]]:
    """Steps of 10 % right after a run that took 8 to 12 % longer for another reason, judged as readings come."""
    for seed in range(count):
        draw = random.Random(f"misplaced {seed}")
        shifts = [draw.gauss(0, QUIET) + (0.1 if index > 30 else 0) for index in range(60)]
        shifts[30] += draw.uniform(0.08, 0.12)
        yield judge_along(line_up(shifts), step_at(31))
