"""The changes of an operator on a device that are suspected or decided already, so that none is tried twice."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from warpwatch.contract.words import ChangeDirection, Verdict
from warpwatch.db.reads.judging import KnownChange
from warpwatch.server.verdicts.bar import SuspicionBar, find_bar, has_budget


class KnownRegressions:
    """The changes of one operator on one device in a part of its history. Commits are named by their ordinals."""

    def __init__(self, changes: Sequence[KnownChange]) -> None:
        self._changes = changes

    def bar(self, readings: int) -> SuspicionBar:
        """How large a shift must be to be compared, with so many readings of all series."""
        return find_bar(self._changes, readings)

    def has_budget(self, readings: int) -> bool:
        """Whether code may be compared on a busy host, with so many readings of all series."""
        return has_budget(self._changes, readings)

    def is_known(self, series_id: int, direction: str, base: int, head: int) -> bool:
        """Whether a change of a series between two commits is nothing new: located, being bisected, or tried before."""
        return any(
            # Of a change that other series show, this series may have been tried at the guilty commit alone.
            (
                [base, head] in change.asked
                and not (change.verdict == Verdict.CONFIRMED and series_id in change.dismissed)
            )
            or (change.direction == direction and _is_open(change, base, head))
            or (series_id not in change.dismissed and _explains(change, direction, base, head))
            for change in self._of(series_id)
        )

    def asked(self, series_id: int) -> list[tuple[int, int]]:
        """The ranges between whose ends trials compared a series, or are going to."""
        return [(first, last) for change in self._of(series_id) for first, last in change.asked]

    def cleared(self, series_id: int) -> list[tuple[int, int]]:
        """The ranges between whose ends trials found no change of a series."""
        return [
            (first, last)
            for change in self._of(series_id)
            if change.verdict == Verdict.DISMISSED and change.is_settled
            for first, last in change.asked
        ]

    def located_inside(self, series_id: int, direction: str, base: int, head: int) -> KnownChange | None:
        """A change of other series inside the range, which may be this one's too: it is tried there first."""
        return next(
            (
                change
                for change in self._changes
                if series_id not in change.series and _explains(change, direction, base, head)
            ),
            None,
        )

    def is_unpaired(self, series_id: int, direction: str, base: int, head: int) -> bool:
        """Whether a suspicion that nothing can decide overlaps: as readings come, its ends move by some commits."""
        return any(
            change.direction == direction and change.base_ordinal < head and base < change.head_ordinal
            for change in self.unpaired()
            if series_id in change.series
        )

    def unpaired(self) -> list[KnownChange]:
        """The suspicions that nothing decides."""
        return [change for change in self._changes if change.verdict == Verdict.SUSPECTED and change.is_settled]

    def without(self, withdrawn: Collection[KnownChange]) -> KnownRegressions:
        """The same changes but for these."""
        return KnownRegressions([change for change in self._changes if change not in withdrawn])

    def is_tried(self, series_id: int, base: int, head: int) -> bool:
        """Whether a trial of a series covers this range, or is going to."""
        return any(
            _is_open(change, base, head) or any(first <= base and head <= last for first, last in change.asked)
            for change in self._of(series_id)
        )

    def is_broken(self, series_id: int, base: int, head: int) -> bool:
        """Whether a breakage between two commits is known, or bisected in a range that overlaps."""
        return any(
            [base, head] in change.asked
            or (change.verdict != Verdict.DISMISSED and change.base_ordinal < head and base < change.head_ordinal)
            for change in self._of(series_id)
            if change.direction == ChangeDirection.BROKEN
        )

    def _of(self, series_id: int) -> list[KnownChange]:
        return [change for change in self._changes if series_id in change.series]


def _explains(change: KnownChange, direction: str, base: int, head: int) -> bool:
    """Whether a change is confirmed whose range lies inside."""
    is_inside = base <= change.base_ordinal and change.head_ordinal <= head
    return change.direction == direction and change.verdict == Verdict.CONFIRMED and change.is_settled and is_inside


def _is_open(change: KnownChange, base: int, head: int) -> bool:
    """Whether trials of a change whose range overlaps are still to be asked for or to answer."""
    return not change.is_settled and change.base_ordinal < head and base < change.head_ordinal
