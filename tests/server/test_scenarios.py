"""The scenarios of bench/verdicts.py in which suspicion on history once failed: the figures that
docs/decisions/change-detection.md states, on fewer series."""

from __future__ import annotations

import random
from itertools import pairwise, permutations

import pytest

from bench.detectors.scenarios import (
    alarms,
    at,
    cost_of_two_speeds,
    drifting,
    false_changes_of_two_speeds,
    is_confirmed,
    judge_along,
    judged_after_outliers,
    line_up,
    observed,
    order_of_repeats,
    same,
    steps_after_outliers,
    steps_of_two_speeds,
    two_speeds,
)
from tests.server.simulated_trials import SimulatedDevice, SimulatedJudge
from warpwatch.server.verdicts.creep import CreepRule, find_creep
from warpwatch.server.verdicts.noise import learn
from warpwatch.server.verdicts.suspicion import SeriesWindow
from warpwatch.server.verdicts.thresholds import THRESHOLDS

RULE = THRESHOLDS["cuda"].alarm


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
    assert all(is_confirmed(known) for known in results)
    assert sum(map(len, results)) <= 3 * len(results)


def test_a_place_is_compared_twice_at_most() -> None:
    """Level shifts that no code explains stay, and are cleared once where they are and once in a wider range."""
    draw = random.Random(9)
    shifts = [draw.gauss(0, 0.004) + (0.1 if place >= 20 else 0) for place in range(60)]
    known = judge_along(line_up(shifts), same)
    assert [change.verdict for change in known] == ["dismissed"] * 2


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_a_slow_drift_is_held_against_the_best_level(seed: int) -> None:
    """By code it is found long before it is large; by the machine it is compared now and then, and cleared."""
    readings = drifting(seed)
    first, *_ = judge_along(readings[:150], lambda base, head: (base, head))
    assert first.verdict == "confirmed"
    assert first.head_ordinal < 80
    assert first.head_ordinal - first.base_ordinal >= 16
    assert len(judge_along(readings, same)) <= 8


def test_noise_and_two_speeds_do_not_creep() -> None:
    for seed in range(4):
        draw = random.Random(seed)
        quiet = line_up([draw.gauss(0, 0.01) for _ in range(128)])
        for readings in (quiet, two_speeds(f"creep {seed}", 128, 0.08, 0.5)):
            times = [reading.median_ns for reading in readings]
            spread = learn(readings, "cuda").spread
            assert all(find_creep(times[:end], CreepRule(RULE, spread)) is None for end in range(32, 129, 4))


def test_a_creep_is_split_over_the_commits_between() -> None:
    """Ten steps of 0.3 % in forty commits: no trial sees one of them, and the ranges share them out."""
    device = SimulatedDevice(41, times={1: {4 * step: 1.003 for step in range(1, 11)}}, noise=0.0015)
    judge = SimulatedJudge(device)
    judge.suspect(0, 40, {1: 1.03})
    judge.work()
    located = sorted(judge.located())
    assert len(located) >= 3
    assert {direction for direction, _, _ in located} == {"slower"}
    assert (located[0][1], located[-1][2]) == (0, 40)
    assert all(before[2] == behind[1] for before, behind in pairwise(located))
