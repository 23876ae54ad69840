"""What counts as a change in a history, on numbers alone."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log, sqrt

import pytest

from warpwatch.server.verdicts.changes import Change, find_changes, span
from warpwatch.server.verdicts.noise import Noise, Reading, detectable, is_blind, learn
from warpwatch.server.verdicts.thresholds import THRESHOLDS

LEVEL = 1e6
RULE = THRESHOLDS["cuda"].alarm


def reading(
    ordinal: int, median_ns: float, commit: int | None = None, spread: float = 0.001, environment: int = 1
) -> Reading:
    return Reading(
        ordinal,
        ordinal if commit is None else commit,
        environment,
        median_ns,
        median_ns * (1 - spread),
        median_ns * (1 + spread),
    )


def noisy(shifts: Sequence[float], deviation: float = 0.005, seed: int = 1) -> list[Reading]:
    """Readings of consecutive commits around LEVEL, each shifted by a factor."""
    draw = random.Random(seed)
    return [reading(index, LEVEL * shift * exp(draw.gauss(0, deviation))) for index, shift in enumerate(shifts)]


def heads(readings: Sequence[Reading]) -> list[int]:
    return [change.head for change in find_changes(readings, "cuda", RULE)]


def scaled(readings: Sequence[Reading], factor: float) -> list[Reading]:
    return [
        replace(one, median_ns=one.median_ns * factor, low_ns=one.low_ns * factor, high_ns=one.high_ns * factor)
        for one in readings
    ]


def test_noise_alone_is_no_change() -> None:
    found = {
        deviation: sum(len(heads(noisy([1.0] * 60, deviation, seed))) for seed in range(25))
        for deviation in (0.002, 0.01, 0.04)
    }
    assert found[0.002] == found[0.01] == 0
    assert found[0.04] <= 0.006 * 25 * 60, "of a noisy series little is known at first"


@pytest.mark.parametrize("factor", [1.06, 1.3, 0.93, 0.5])
@pytest.mark.parametrize("place", [8, 20, 39])
def test_a_step_is_found_at_its_commit(factor: float, place: int) -> None:
    readings = noisy([1.0] * place + [factor] * (40 - place))
    (found,) = find_changes(readings, "cuda", RULE)
    assert (found.base, found.head) == (place - 1, place)
    assert found.ratio == pytest.approx(factor, rel=0.01)
    assert found.score > 1
    assert heads(readings[: place + 1]) == [place], "at once, without waiting for later runs"


def test_small_steps_are_seen_as_more_runs_come() -> None:
    every = [noisy([1.0] * 30 + [1.04] * 10, 0.012, seed) for seed in range(40)]
    at_once = sum(30 in heads(readings[:31]) for readings in every)
    later = sum(any(abs(head - 30) <= 2 for head in heads(readings)) for readings in every)
    assert at_once < 15
    assert later > at_once + 10


def test_every_level_of_several_is_found() -> None:
    assert heads(noisy([1.0] * 20 + [1.1] * 20 + [0.9] * 20 + [0.95] * 20)) == [20, 40, 60]


def test_a_backfilled_commit_counts_as_if_it_had_always_been_there() -> None:
    readings = noisy([1.0] * 25 + [1.2] * 25)
    # Only every fifth commit was measured at first, so the step lay between two of those; filling the hole moves it to
    # its commit.
    sparse = readings[2::5]
    (found,) = find_changes(sparse, "cuda", RULE)
    assert [sparse[found.base].ordinal, sparse[found.head].ordinal] == [22, 27]
    filled = sorted([*sparse, *readings[23:27]], key=lambda one: one.ordinal)
    (found,) = find_changes(filled, "cuda", RULE)
    assert [filled[found.base].ordinal, filled[found.head].ordinal] == [24, 25]


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_only_ratios_count_above_the_floor(factor: float) -> None:
    readings = scaled(noisy([1.0] * 20 + [1.1] * 20), 10)
    assert [change.head for change in find_changes(scaled(readings, factor), "cuda", RULE)] == [20]


def test_changes_of_a_few_nanoseconds_are_none() -> None:
    assert heads(scaled(noisy([1.0] * 20 + [1.1] * 20, 0.001), 400 / LEVEL)) == []
    assert heads(scaled(noisy([1.0] * 20 + [1.1] * 20, 0.001), 600 / LEVEL)) == [20]


def test_an_outlier_is_forgotten_when_the_next_run_is_there() -> None:
    readings = noisy([1.0] * 20 + [1.5] + [1.0] * 19)
    assert heads(readings[:21]) == [20]
    assert heads(readings[:22]) == heads(readings) == []


def test_outliers_right_before_a_step_on_a_host_do_not_move_it() -> None:
    """Two of the four runs before a step of 50 % were disturbed by other work, and some before and behind."""
    disturbed = [1.0] * 7 + [1.8, 1.0, 1.0, 2.4, 1.0, 1.8, 2.6, 1.0, 1.0, 1.0, 1.0, 1.6, 1.0, 2.8, 1.0]
    step, behind = len(disturbed), [1.5, 1.5, 1.5, 3.9, 1.5, 1.5, 3.2, 1.5, 1.5]
    (found,) = find_changes(noisy(disturbed + behind, 0.01), "cpu reported", THRESHOLDS["cpu"].alarm)
    assert found.base < step <= found.head


def test_a_level_visited_before_is_no_change() -> None:
    draw = random.Random(3)
    slow = [False] * 12 + [True] + [draw.random() < 0.3 for _ in range(60)]
    readings = noisy([1.08 if now else 1.0 for now in slow], 0.003)
    alarms = sum(end in heads(readings[: end + 1]) for end in range(16, len(readings)))
    assert sum(slow[16:]) > 10
    assert alarms == 0
    assert heads(readings) == []
    beyond = [reading(len(readings) + index, LEVEL * 1.25) for index in range(4)]
    assert heads([*readings, *beyond]) == [len(readings)], "neither of the two levels"


def test_a_run_whose_samples_scatter_more_than_usual_proves_less() -> None:
    usual = noisy([1.0] * 20)
    assert heads([*usual, reading(20, LEVEL * 1.06)]) == [20]
    assert heads([*usual, reading(20, LEVEL * 1.06, spread=0.05)]) == []


def test_the_scatter_of_reported_intervals_hides_no_step() -> None:
    """Programs report ranges, or deviations of a few samples: here of 2 to 60 % between runs that differ by 8 %."""
    times = [1.13, 1.0, 1.04, 1.1, 0.85, 1.02, 1.08, 0.83, 0.84, 0.95, 1.01, 1.0, 1.0] + [0.63] * 6
    widths = [
        0.13,
        0.03,
        0.27,
        0.14,
        0.04,
        0.2,
        0.09,
        0.01,
        0.12,
        0.02,
        0.3,
        0.03,
        0.05,
        0.05,
        0.05,
        0.01,
        0.01,
        0.1,
        0.2,
    ]
    readings = [
        reading(index, LEVEL * time, spread=width)
        for index, (time, width) in enumerate(zip(times, widths, strict=True))
    ]
    (found,) = find_changes(readings, "cpu reported", THRESHOLDS["cpu"].alarm)
    assert (found.base, found.head) == (12, 13)
    assert not find_changes(readings, "cpu", THRESHOLDS["cpu"].alarm), "an interval of the harness is of many samples"


def test_a_reported_range_hides_no_step_that_later_runs_show() -> None:
    """The range of a program's samples may begin at almost nothing from a step on, which says nothing of its median."""
    readings = [*noisy([1.0] * 20, 0.01), *(reading(20 + index, LEVEL * 2.5, spread=0.99) for index in range(4))]
    (found,) = find_changes(readings, "cpu reported", THRESHOLDS["cpu"].alarm)
    assert (found.base, found.head) == (19, 20)
    assert not find_changes(readings[:-2], "cpu reported", THRESHOLDS["cpu"].alarm), "these may be disturbed runs"


def test_eight_reported_runs_beyond_all_before_them_are_a_change_however_those_scatter() -> None:
    scattered = [1.2, 1.9, 1.0, 1.45, 1.0, 1.7, 1.7, 1.7, 2.3, 1.7, 1.2, 1.0, 1.7, 1.0]
    readings = noisy([*scattered, *[0.85] * 8], 0.005)
    (found,) = find_changes(readings, "cpu reported", THRESHOLDS["cpu"].alarm)
    assert (found.head, found.score) == (14, 1.0)
    for same in (readings[:-1], [*readings[:-1], reading(21, LEVEL * 0.99)]):
        assert not find_changes(same, "cpu reported", THRESHOLDS["cpu"].alarm)


@pytest.mark.parametrize("undone", [1, 2, 3])
def test_a_step_that_is_undone_begins_where_it_began(undone: int) -> None:
    readings = noisy([1.0] * 16 + [1.12] * 4 + [1.0] * undone, 0.002)
    (found,) = find_changes(readings, "cpu reported", THRESHOLDS["cpu"].alarm)
    assert (found.base, found.head) == (15, 16)


def test_a_slow_drift_is_no_change() -> None:
    assert heads(noisy([1.0003**index for index in range(200)], 0.004)) == []


def test_repeats_of_a_commit_are_never_split() -> None:
    before = noisy([1.0] * 20)
    repeats = [reading(20, LEVEL * shift, commit=20) for shift in (1.0, 1.1, 1.1, 1.1)]
    after = [reading(21 + index, LEVEL * 1.1) for index in range(5)]
    assert heads([*before, *repeats, *after]) in ([20], [24])


def test_repeats_teach_the_noise() -> None:
    """Commits that differ by much more than runs of one commit do are noise to who sees them once, and are not to who
    repeats them."""
    draw = random.Random(4)
    levels = [exp(draw.gauss(0, 0.03)) for _ in range(12)]
    once = [reading(index, LEVEL * level) for index, level in enumerate(levels)]
    repeated = [
        reading(index, LEVEL * level * exp(draw.gauss(0, 0.004)), index)
        for index, level in enumerate(levels)
        for _ in range(4)
    ]
    assert learn(once, "cuda").between > 0.02
    assert learn(repeated, "cuda").between < 0.008


def test_noise_has_two_levels() -> None:
    draw = random.Random(6)
    found = learn([reading(i, LEVEL * exp(draw.gauss(0, 0.02)), spread=0.00196) for i in range(200)], "cuda")
    assert found.between == pytest.approx(0.02, rel=0.2)
    assert found.within == pytest.approx(0.001, rel=0.01)
    assert learn([*noisy([1.0] * 100), *noisy([1.3] * 100)], "cuda").between == pytest.approx(0.005, rel=0.25), (
        "steps are no noise"
    )


def test_without_history_a_series_expects_what_others_showed() -> None:
    assert learn([], "cuda") == Noise(0.008, 0.0, 0)
    assert learn([reading(0, LEVEL)], "cpu").between == 0.03
    assert find_changes([], "cuda") == []
    assert find_changes(noisy([1.0, 2.0]), "cuda") == []


def test_what_is_detectable_is_detected() -> None:
    seen = 0
    for seed in range(100):
        usual = noisy([1.0] * 30, 0.008, seed)
        least = detectable(learn(usual, "cuda"), "cuda", LEVEL)
        new = reading(30, LEVEL * (1 + least) * exp(random.Random(f"new {seed}").gauss(0, 0.008)))
        seen += any(change.head == 30 for change in find_changes([*usual, new], "cuda"))
    assert seen >= 82, "normal noise, unlike that of real series, has no tails"
    assert detectable(Noise(0.004, 0.0), "cuda") < 0.045 < detectable(Noise(0.02, 0.0), "cuda")
    assert detectable(Noise(0.004, 0.0), "cuda", level_ns=500) == 0.1


def test_a_change_may_hide_in_the_times_of_all_but_quiet_series() -> None:
    assert not is_blind(learn(noisy([1.0] * 60, 0.001), "cuda"), "cuda")
    assert is_blind(learn(noisy([1.0] * 60, 0.005), "cuda"), "cuda")
    assert is_blind(learn([], "cuda"), "cuda")


def test_one_more_reading_needs_its_neighbourhood_only() -> None:
    """What is found around a commit is what is found in all of history there, from a part of it."""
    readings = noisy([1.0] * 700 + [1.1] * 800 + [1.0] * 500, 0.01)
    whole = [(readings[one.head].ordinal, one.score) for one in find_changes(readings, "cuda")]
    for ordinal in (0, 699, 700, 1499, 1505, 1999):
        first, last = span(ordinal)
        part = [one for one in readings if first <= one.ordinal <= last]
        found = [(part[one.head].ordinal, one.score) for one in find_changes(part, "cuda", around=ordinal)]
        assert found == [pair for pair in whole if found and found[0][0] <= pair[0] <= found[-1][0]]
        assert len(part) <= 640
    near = find_changes(
        [one for one in readings if span(700)[0] <= one.ordinal <= span(700)[1]], "cuda", RULE, around=700
    )
    assert isinstance(near[0], Change)
    assert len(near) == 1


def test_cost_grows_with_the_neighbourhood_not_with_history() -> None:
    def seconds(count: int) -> float:
        readings = noisy([1.0] * count, 0.01)
        first, last = span(count - 1)
        start = time.thread_time()
        for _ in range(5):
            find_changes(readings[max(0, first) : last + 1], "cuda", around=count - 1)
        return time.thread_time() - start

    assert seconds(10_000) < 10 * seconds(1_000)


def test_deviations_of_ratios_are_those_of_log_time() -> None:
    twice = [reading(index, LEVEL * (2.0 if index % 2 else 1.0)) for index in range(40)]
    assert learn(twice, "cuda").between == pytest.approx(1.4826 * log(2) / sqrt(2), rel=0.05)
