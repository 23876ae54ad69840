"""Where on a path of commits a change must lie, by what was measured of it, and which commit to measure next.

A path is a list of commits, the good end first; a commit that may be guilty is named by its place there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """Two commits of a path that a trial compared, by their places, and whether they differ."""

    base: int
    head: int
    changed: bool


def suspects(differs: Sequence[bool], answers: Iterable[RangeAnswer]) -> list[int]:
    """Places of the commits that may be guilty.

    differs: of each commit, whether it differs from the one before; the first never does.

    An answer that contradicts all others is ignored: where there was a suspect before there always is one.
    """
    places = [place for place, differ in enumerate(differs) if differ and place > 0]
    for answer in answers:
        inside = [place for place in places if answer.base < place <= answer.head]
        remaining = inside if answer.changed else [place for place in places if place not in inside]
        places = remaining or places
    return places


def bounds(places: Sequence[int]) -> tuple[int, int]:
    """The narrowest range, (last good, first bad), that holds all suspects."""
    return places[0] - 1, places[-1]


def middle(places: Sequence[int], skipped: Iterable[int]) -> int | None:
    """The suspect whose measurement halves them best, the earlier of two; None when no suspect is to be measured.

    skipped: places of commits that cannot be measured.
    """
    useless = set(skipped)
    candidates = [
        (abs(2 * (index + 1) - len(places)), place) for index, place in enumerate(places[:-1]) if place not in useless
    ]
    return min(candidates)[1] if candidates else None
