"""A series that became slower by steps too small to be suspected one by one: held against the best level it had, and
against its releases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import log
from statistics import median, quantiles

from warpwatch.db.reads.observed import ReleaseReading
from warpwatch.server.verdicts.changes import LEAST_SHARE, LEVEL
from warpwatch.server.verdicts.thresholds import ShiftRule

LEAST_AT_RELEASE = 4
"""Readings at or before a release without which its level is not known."""


@dataclass(frozen=True, slots=True)
class ReleaseLevel:
    """Level of a series at a release: `commit_id` is the newest measured commit at or before the release."""

    commit_id: int
    sha: str
    ordinal: int
    times_ns: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CreepRule:
    """Thresholds that a creep must reach.

    spread: the deviation of one reading, of which two levels keep LEAST_SHARE. drift: log time by which the card became
    slower, as unchanged series of other operators show: a slowdown that the drift explains is no creep.
    """

    shift: ShiftRule
    spread: float
    drift: float = 0.0

    def is_met(self, before_ns: Sequence[float], now_ns: Sequence[float]) -> bool:
        """Whether the times are slower by more than the rule asks and the drift explains.

        Of two speeds each level holds both, so their middle halves must lie apart.
        """
        ratio = median(now_ns) / median(before_ns)
        if median(now_ns) - median(before_ns) < self.shift.least_ns:
            return False
        is_apart = quantiles(now_ns, n=4)[0] > quantiles(before_ns, n=4)[2]
        return is_apart and log(ratio) - max(0.0, self.drift) >= self.shift.threshold(LEAST_SHARE * self.spread)


def find_creep(times_ns: Sequence[float], rule: CreepRule) -> tuple[int, float] | None:
    """The last commit of the best level, and the newest level over it, where the series is slower than the rule allows.

    times_ns: what a series reads at neighbouring commits, without a change of level among them. Levels are medians of
    LEVEL commits.
    """
    if len(times_ns) < 2 * LEVEL:
        return None
    first = min(range(len(times_ns) - 2 * LEVEL + 1), key=lambda start: median(times_ns[start : start + LEVEL]))
    best, newest = times_ns[first : first + LEVEL], times_ns[-LEVEL:]
    return (first + LEVEL - 1, median(newest) / median(best)) if rule.is_met(best, newest) else None


def find_release_creep(
    releases: Sequence[ReleaseLevel], times_ns: Sequence[float], rule: CreepRule
) -> tuple[ReleaseLevel, float] | None:
    """The release over which the newest level is slowest, with their ratio, where that is more than the rule allows.
    times_ns: as of find_creep."""
    newest = times_ns[-LEVEL:]
    if len(newest) < LEVEL:
        return None
    met = [release for release in releases if rule.is_met(release.times_ns, newest)]
    if not met:
        return None
    best = min(met, key=lambda release: median(release.times_ns))
    return best, median(newest) / median(best.times_ns)


def release_levels(rows: Iterable[ReleaseReading], line: set[str], card_id: int | None) -> list[ReleaseLevel]:
    """The levels of one series at the releases on a line, by readings of this card and of unknown ones; by all where it
    is unknown. rows: by release, oldest commit first."""
    levels = []
    for release_sha, group in groupby(rows, key=lambda row: row.release_sha):
        own = [row for row in group if card_id is None or row.card_id in (None, card_id)]
        readings = [row for row in own if row.sha in line]
        if release_sha in line and len(readings) >= LEAST_AT_RELEASE:
            last = readings[-1]
            times = tuple(row.median_ns for row in readings)
            levels.append(ReleaseLevel(last.commit_id, last.sha, last.ordinal, times))
    return levels
