"""How large a shift must be to ask for a comparison, where comparisons showed no change again and again.

A suspicion costs a comparison and is meant to be wrong now and then. On noisy series, and where a machine moves many
series at once, it is wrong over and over. So the comparisons of an operator on a device are counted against the
readings that gave rise to them, and the bar is raised as they exceed what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from warpwatch.contract.words import Cause, Verdict
from warpwatch.db.reads.judging import KnownChange

ALLOWED = 0.02
"""Comparisons per reading of a series that may show nothing: 20 of 1,000."""
CREDIT = 2.0
"""Comparisons that are free, since the first readings of a series say little of its noise."""
FROM = 0.25
"""Part of what is allowed from which on the bar is raised, first to the limit for alarms."""
STEEPNESS = 16.0
"""By how much the score that is asked for grows while as many more comparisons are dismissed as are allowed: so fast
that their number stays near what is allowed."""
STEEP_AT, STEEP_SCORE = 0.8, 1.5
"""Part of what is allowed at which such a score is asked for."""
MOST_USED = 2.5
"""Part of what is allowed from which on the bar rises no more."""


@dataclass(frozen=True, slots=True)
class SuspicionBar:
    """dismissed: of the `tried` comparisons of series of an operator on a device that history asked for, those that
    showed no change. score: of a change (see changes.Change) that is compared; 0 where the rule for suspicions alone
    counts."""

    tried: int
    dismissed: int
    score: float

    @property
    def is_raised(self) -> bool:
        return self.score > 0


def find_bar(changes: Iterable[KnownChange], readings: int) -> SuspicionBar:
    """The bar of an operator on a device. changes: the known ones among its recent readings. readings: their number,
    over all series."""
    asked = [change for change in changes if change.cause == Cause.HISTORY and change.asked]
    tried, dismissed = sum(len(change.series) for change in asked), sum(len(change.dismissed) for change in asked)
    return SuspicionBar(tried, dismissed, required_score(dismissed, readings))


def has_budget(changes: Iterable[KnownChange], readings: int) -> bool:
    """Whether series of an operator on a device may be compared for their code alone, on a host that is always busy.

    changes, readings: as of find_bar. As many may show nothing as the bar allows. Those that code asked for count, too,
    and so do those that have yet to answer, because a busy host gets through few comparisons.
    """
    asked = [change for change in changes if change.cause != Cause.STATUS and change.asked]
    unconfirmed = [item.dismissed if item.verdict == Verdict.CONFIRMED else item.series for item in asked]
    return sum(map(len, unconfirmed)) + 1 <= CREDIT + ALLOWED * readings


def required_score(dismissed: int, readings: int) -> float:
    """The score of a change that is compared, where `dismissed` comparisons showed nothing among so many readings."""
    used = min(MOST_USED, dismissed / (CREDIT + ALLOWED * readings))
    return 0.0 if used < FROM else max(1.0, STEEP_SCORE * STEEPNESS ** (used - STEEP_AT))
