"""The scenarios of bench/verdicts.py in which suspicion on history once failed: the figures that
docs/decisions/change-detection.md states, on fewer series."""

from __future__ import annotations

import random
from itertools import permutations

from bench.detectors.scenarios import (
    alarms,
    at,
    cost_of_two_speeds,
    false_changes_of_two_speeds,
    judge_along,
    judged_after_outliers,
    line_up,
    observed,
    order_of_repeats,
    steps_after_outliers,
    steps_of_two_speeds,
)
from warpwatch.server.verdicts.noise import learn
from warpwatch.server.verdicts.suspicion import SeriesWindow


def test_a_step_after_an_outlier_is_named_as_a_range() -> None:
    placement = steps_after_outliers(40)
    assert placement.named >= 36, "an outlier of the size of the step is told from it by a comparison alone"
    assert placement.readings <= 2.2, "the step lies in one of two commits"


def test_readings_at_neither_level_may_be_on_either_side() -> None:
    (change,) = alarms(line_up([0.0] * 20 + [0.3, 0.3] + [0.1] * 10))
    assert (change.base, change.head) == (19, 22)
    (change,) = alarms(line_up([0.0] * 20 + [0.1] * 10))
    assert (change.base, change.head) == (19, 20)


def test_the_order_of_repeats_does_not_matter() -> None:
    assert order_of_repeats(30) == 0
    repeats = [at(number, shift, 3) for number, shift in enumerate((0.0, 0.004, 0.02, 0.003))]
    first = [at(0, 0.001, 0), at(1, 0.002, 1)]
    assert len({learn([*first, *order], "cuda") for order in permutations(repeats)}) == 1


def test_repeats_are_no_history_of_levels() -> None:
    """Three runs of one commit are one level, so a jump at the next commit still counts as one between neighbours."""
    rows = [observed(at(0, shift)) for shift in (0.0, 0.001, 0.002, 0.001)] + [observed(at(1, 0.2))]
    assert list(SeriesWindow(rows, [], "cuda", 1).noticed()) == [(0, 1)]


def test_two_speeds_are_no_change_and_hide_none_that_is_larger() -> None:
    false, steps = false_changes_of_two_speeds(25), steps_of_two_speeds(25)
    assert max(share for name, share in false.items() if "stays" not in name) <= 0.25
    assert false["300 readings, 50 % slow, in stays of 4"] <= 0.5
    assert min(steps.values()) >= 0.95


def test_two_speeds_cost_little_more_than_one() -> None:
    """A reading of two speeds is compared with its past at almost every commit, so it costs the most."""
    assert cost_of_two_speeds(10_000, 3) < 30 * cost_of_two_speeds(128, 3)


def test_a_speed_that_stays_is_a_change() -> None:
    draw = random.Random(8)
    shifts = [0.08 * (draw.random() < 0.25) for _ in range(40)] + [0.08] * 60
    assert len(alarms(line_up([shift + draw.gauss(0, 0.003) for shift in shifts]))) == 1


def test_a_misplaced_change_is_looked_for_again() -> None:
    """An outlier of the size of the step is compared and cleared; the step right behind it is still found."""
    results = list(judged_after_outliers(12))
    assert all(is_found for is_found, _ in results)
    assert sum(compared for _, compared in results) <= 3 * len(results)


def test_a_place_is_compared_twice_at_most() -> None:
    """Level shifts that no code explains stay, and are cleared once where they are and once in a wider range."""
    draw = random.Random(9)
    shifts = [draw.gauss(0, 0.004) + (0.1 if place >= 20 else 0) for place in range(60)]
    assert judge_along(line_up(shifts), None) == (False, 2)
