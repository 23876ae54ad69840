"""Finds the widest gaps in a history. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

Line = TypeVar("Line")


@dataclass(frozen=True, slots=True)
class Version:
    """Neighbouring commits at which an operator is made of the same sources, oldest first, and whether one of them was
    measured."""

    shas: list[str]
    is_measured: bool


def versions(shas: Sequence[str], fingerprints: Sequence[str | None], measured: set[str]) -> list[Version]:
    """The versions of an operator along a history, oldest first; commits without the operator (no fingerprint) belong
    to none."""
    runs: list[list[str]] = []
    last: str | None = None
    for sha, fingerprint in zip(shas, fingerprints, strict=True):
        if fingerprint is not None and fingerprint == last:
            runs[-1].append(sha)
        elif fingerprint is not None:
            runs.append([sha])
        last = fingerprint
    return [Version(run, not measured.isdisjoint(run)) for run in runs]


def widest_first(lines: Mapping[Line, Sequence[Version]]) -> Iterator[tuple[Line, str]]:
    """Line and commit, the widest gap of all lines first; each commit halves its gap, and both halves are gaps again.

    What is newer than everything measured has no far end: its newest version comes first. What is older than everything
    measured is no gap. A line of which nothing was measured lacks its newest version alone. Ends when no gap is left.
    """
    heap: list[tuple[int, int, int, int]] = []
    named = list(lines)

    def push(line: int, low: int, high: int) -> None:
        # The newest gap first among equals: it is where the next change will be looked for.
        if high - low > 1:
            heapq.heappush(heap, (low + 1 - high, -high, line, low))

    for number, name in enumerate(named):
        marks = [index for index, version in enumerate(lines[name]) if version.is_measured]
        end = len(lines[name])
        for low, high in pairwise(marks):
            push(number, low, high)
        if end:
            push(number, marks[-1] if marks else end - 2, end)
    while heap:
        _, back, line, low = heapq.heappop(heap)
        high, chain = -back, lines[named[line]]
        chosen = high - 1 if high == len(chain) else (low + high) // 2
        # The commit that brought the version, so that a change is found where it was made.
        yield named[line], chain[chosen].shas[0]
        push(line, low, chosen)
        if high < len(chain):
            push(line, chosen, high)


def halve(shas: Sequence[str]) -> list[str]:
    """Commits of a history, which begins with the oldest, so that its shape is seen early: the newest, the oldest, then
    the middle of the widest gap, again and again."""
    ends = list(dict.fromkeys([*shas[-1:], *shas[:1]]))
    chain = [Version([sha], sha in ends) for sha in shas]
    return [*ends, *(sha for _, sha in widest_first({"": chain}))]
