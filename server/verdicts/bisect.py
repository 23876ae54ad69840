"""Where on a path of commits a change must lie, by what was measured of it, and which commit to measure next.

A path is a list of commits, the good end first; a commit that may be guilty is named by its place there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """Two commits of a path that were held against each other, by their places, and whether they differ."""

    base: int
    head: int
    changed: bool


def suspects(differs: Sequence[bool], findings: Iterable[RangeAnswer]) -> list[int]:
    """Places of the commits that may be guilty.

    differs: of each commit, whether it differs from the one before; the first never does.

    A finding that contradicts all others is left out of account: there is always a suspect where there was one before.
    """
    left = [place for place, differ in enumerate(differs) if differ and place > 0]
    for finding in findings:
        inside = [place for place in left if finding.base < place <= finding.head]
        remaining = inside if finding.changed else [place for place in left if place not in inside]
        left = remaining or left
    return left


def bounds(left: Sequence[int]) -> tuple[int, int]:
    """The narrowest range, (last good, first bad), that holds all suspects."""
    return left[0] - 1, left[-1]


def middle(left: Sequence[int], skipped: Iterable[int]) -> int | None:
    """The suspect whose measurement halves them best, the earlier of two; None when there is nothing left to measure.

    skipped: places of commits that cannot be measured.
    """
    useless = set(skipped)
    candidates = [
        (abs(2 * (index + 1) - len(left)), place) for index, place in enumerate(left[:-1]) if place not in useless
    ]
    return min(candidates)[1] if candidates else None
