"""What is suspected or decided already of an operator on a device, so that nothing is asked for twice."""

from __future__ import annotations

from warpwatch.contract.words import Verdict
from warpwatch.db.reads import judging
from warpwatch.db.reads.judging import KnownChange
from warpwatch.db.reads.query import Session


class KnownRegressions:
    """The changes of one operator on one device in a piece of history. Commits are named by their ordinals."""

    def __init__(self, session: Session, operator_id: int, device_id: int, oldest: int) -> None:
        self._changes = judging.list_known(session, operator_id, device_id, oldest)

    def is_told(self, series_id: int, direction: str, base: int, head: int) -> bool:
        """Whether a change of a series between two commits is nothing new: found, being looked for, or put to a trial
        before."""
        return any(
            # Of a change that other series show, this one may have been held against the commit alone that was found.
            ([base, head] in one.asked and not (one.verdict == Verdict.CONFIRMED and series_id in one.dismissed))
            or (one.direction == direction and _is_open(one, base, head))
            or (series_id not in one.dismissed and _explains(one, direction, base, head))
            for one in self._of(series_id)
        )

    def found_inside(self, series_id: int, direction: str, base: int, head: int) -> tuple[int, int] | None:
        """The ids of the two commits between which other series changed, where this one may have too: it is tried there
        first."""
        others = (one for one in self._changes if series_id not in one.series and _explains(one, direction, base, head))
        return next(((one.base_commit_id, one.head_commit_id) for one in others), None)

    def is_tried(self, series_id: int, base: int, head: int) -> bool:
        """Whether a series was held against itself over a range that holds this one, or is going to be."""
        return any(
            _is_open(one, base, head) or any(first <= base and head <= last for first, last in one.asked)
            for one in self._of(series_id)
        )

    def is_broken(self, series_id: int, base: int, head: int) -> bool:
        """Whether a breakage between two commits is known, or looked for in a range that overlaps."""
        return any(
            [base, head] in one.asked
            or (one.verdict != Verdict.DISMISSED and one.base_ordinal < head and base < one.head_ordinal)
            for one in self._of(series_id)
            if one.direction == "broken"
        )

    def _of(self, series_id: int) -> list[KnownChange]:
        return [one for one in self._changes if series_id in one.series]


def _explains(change: KnownChange, direction: str, base: int, head: int) -> bool:
    """Whether a change is confirmed whose range lies inside."""
    is_inside = base <= change.base_ordinal and change.head_ordinal <= head
    return change.direction == direction and change.verdict == Verdict.CONFIRMED and change.is_settled and is_inside


def _is_open(change: KnownChange, base: int, head: int) -> bool:
    """Whether something is still to be measured for a change whose range overlaps."""
    return not change.is_settled and change.base_ordinal < head and base < change.head_ordinal
