"""Halving a range of commits, on numbers alone."""

from __future__ import annotations

from math import ceil, log2

import pytest

from warpwatch.server.verdicts.bisect import RangeAnswer, bounds, middle, suspects


def search(differs: list[bool], guilty: int, broken: frozenset[int] = frozenset()) -> tuple[tuple[int, int], int]:
    """(the range found, how many commits were measured) when the commit at place `guilty` changed something."""
    findings: list[RangeAnswer] = []
    while True:
        left = suspects(differs, findings)
        place = middle(left, broken)
        if place is None:
            return bounds(left), len(findings)
        base = bounds(left)[0]
        findings.append(RangeAnswer(base, place, base < guilty <= place))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 31])
def test_every_guilty_commit_is_found_in_logarithmic_time(count: int) -> None:
    differs = [False] + [True] * count
    for guilty in range(1, count + 1):
        found, measured = search(differs, guilty)
        assert found == (guilty - 1, guilty)
        assert measured <= ceil(log2(count))


def test_commits_that_change_nothing_are_not_measured() -> None:
    differs = [False, False, True, False, False, False, True, False]
    assert bounds(suspects(differs, [])) == (1, 6)
    assert search(differs, 2) == ((1, 2), 1)
    assert search(differs, 6) == ((5, 6), 1)
    assert search([False, False, True, False], 2) == ((1, 2), 0)


def test_what_cannot_be_measured_is_gone_around() -> None:
    differs = [False] + [True] * 7
    assert search(differs, 6, frozenset({4})) == ((5, 6), 3)
    assert search(differs, 2, frozenset({4})) == ((1, 2), 3)
    # Nobody can tell which of the two it was, so the range holds both.
    assert search(differs, 4, frozenset({4}))[0] == (3, 5)
    assert search(differs, 5, frozenset({4}))[0] == (3, 5)
    assert search(differs, 3, frozenset({1, 2, 3, 4, 5, 6})) == ((0, 7), 0)


def test_findings_hold_in_any_order_and_contradictions_leave_a_suspect() -> None:
    differs = [False] + [True] * 6
    findings = [RangeAnswer(0, 3, False), RangeAnswer(3, 5, True), RangeAnswer(3, 4, False)]
    assert suspects(differs, findings) == suspects(differs, findings[::-1]) == [5]
    assert suspects(differs, [RangeAnswer(0, 6, False)]) == [1, 2, 3, 4, 5, 6]
    assert suspects(differs, [*findings, RangeAnswer(4, 5, False)]) == [5]
