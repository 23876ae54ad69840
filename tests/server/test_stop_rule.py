"""A comparison that may end early finds as many changes, and no more false ones, than one that takes all rounds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from math import exp
from typing import Any

import pytest

from tests.server.test_held_rounds import rounds
from warpwatch.contract.rounds import (
    LOOKS,
    ROUNDS,
    StopRule,
    early_ratio,
    student,
    times_of_rounds,
)
from warpwatch.server.verdicts.held import classify_comparison, classify_pairs, classify_trial
from warpwatch.server.verdicts.paired import decide
from warpwatch.server.verdicts.thresholds import stop_rule, thresholds_of

COMPARISONS = 2000


def take(rng: random.Random, ratio: float, noise: float, rule: StopRule) -> tuple[list[float], list[float]]:
    """The rounds of a comparison that ends by the rule, as the worker takes them."""
    base_ns, head_ns = rounds(rng, ratio, noise)
    for count in LOOKS:
        if rule.is_met([head / base for base, head in zip(base_ns[:count], head_ns[:count], strict=True)]):
            return base_ns[:count], head_ns[:count]
    return base_ns, head_ns


def decisions(kind: str, ratio: float, noise: float, suspected: float) -> tuple[Counter[str], float]:
    """(decisions of many comparisons, mean of their rounds); an unsure one is taken again, as the judge does."""
    rng, rule, counts, taken = random.Random(f"{kind} {ratio}"), stop_rule(kind, is_suspected=True), Counter[str](), 0
    for _ in range(COMPARISONS):
        pair = take(rng, ratio, noise, rule)
        taken += len(pair[0])
        decision = decide(*pair, "slower", suspected, kind).decision
        if decision == "unsure":
            more = rounds(rng, ratio, noise, count=thresholds_of(kind).more_rounds)
            decision = decide(*more, "slower", suspected, kind).decision
        counts[decision] += 1
    return counts, taken / COMPARISONS


@pytest.mark.parametrize(("kind", "noise", "suspected"), [("cuda", 0.003, 1.02), ("cpu", 0.02, 1.05)])
def test_identical_code_is_confirmed_once_in_a_thousand_at_most(kind: str, noise: float, suspected: float) -> None:
    counts, _ = decisions(kind, 1.0, noise, suspected)
    assert counts["confirmed"] <= COMPARISONS / 1000, counts


@pytest.mark.parametrize(("kind", "noise", "ratio"), [("cuda", 0.003, 1.02), ("cpu", 0.02, 1.05)])
def test_changes_are_confirmed_as_often_as_by_all_rounds(kind: str, noise: float, ratio: float) -> None:
    counts, _ = decisions(kind, ratio, noise, ratio)
    assert counts["confirmed"] >= 0.95 * COMPARISONS, counts


@pytest.mark.parametrize(("kind", "ratio", "noise"), [("cuda", 1.05, 0.003), ("cpu", 1.3, 0.02), ("cuda", 1.0, 0.001)])
def test_what_is_plain_takes_few_rounds(kind: str, ratio: float, noise: float) -> None:
    _, mean_rounds = decisions(kind, ratio, noise, 1.05)
    assert mean_rounds < 0.6 * ROUNDS


@pytest.mark.parametrize(("kind", "noise"), [("cuda", 0.005), ("cpu", 0.03)])
def test_many_pairs_that_may_end_early_raise_no_alarm(kind: str, noise: float) -> None:
    rng, rule, pairs, submissions = random.Random(kind), stop_rule(kind, is_suspected=False), 100, 100
    alarms = sum(
        any(
            classify_pairs(*take(rng, 1.0, noise, rule), kind, pairs).outcome in ("slower", "faster")
            for _ in range(pairs)
        )
        for _ in range(submissions)
    )
    assert alarms / submissions <= 0.05, f"{alarms} of {submissions} submissions of {pairs} pairs"


def end_by_time(rng: random.Random, ratio: float, noise: float, last: int) -> tuple[list[float], list[float], StopRule]:
    """The rounds of a comparison whose time is over after `last` of them."""
    rule = replace(stop_rule("cpu", is_suspected=False), seconds=1.0)
    base_ns, head_ns = rounds(rng, ratio, noise, count=last)
    for count in (count for count in LOOKS if count <= last):
        if rule.is_met([head / base for base, head in zip(base_ns[:count], head_ns[:count], strict=True)]):
            return base_ns[:count], head_ns[:count], rule
    return base_ns, head_ns, rule


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.1])
@pytest.mark.parametrize("ratio", [1.0, 1.06])
def test_a_limit_of_time_raises_no_rate_of_errors(ratio: float, noise: float) -> None:
    """Neither false changes, nor changes that are called none: compared with all twelve rounds."""
    rng, errors = random.Random(f"{ratio} {noise}"), Counter[str]()
    wrong = ("slower", "faster") if ratio == 1.0 else ("same", "faster")
    rule, comparisons = stop_rule("cpu", is_suspected=False), 1500
    for _ in range(comparisons):
        base_ns, head_ns = take(rng, ratio, noise, rule)
        errors["all rounds"] += classify_comparison(base_ns, head_ns, "cpu", 4, rule).outcome in wrong
        base_ns, head_ns, timed = end_by_time(rng, ratio, noise, rng.randint(6, 30))
        errors["limited"] += classify_comparison(base_ns, head_ns, "cpu", 4, timed).outcome in wrong
    assert errors["limited"] <= errors["all rounds"] + comparisons / 1000, errors


def two_speeds(rng: random.Random) -> float:
    """A ratio of two processes, each of which runs at one of two speeds."""
    return rng.choice((1.0, 2.0)) / rng.choice((1.0, 2.0)) * exp(rng.gauss(0, 0.01))


@pytest.mark.parametrize("noise", [0.3, 1.0, None], ids=["busy", "busier", "two speeds"])
def test_rounds_of_a_busy_host_show_no_change_by_chance(noise: float | None) -> None:
    """All looks together: before the scatter counted, 7, 18 and 9 of 100 comparisons showed one after three rounds."""
    rng, rule, comparisons = random.Random(str(noise)), stop_rule("cpu", is_suspected=False), 1000
    rule, changes = replace(rule, seconds=1.0), 0
    for _ in range(comparisons):
        count = rng.randint(6, 14)
        ratios = [two_speeds(rng) if noise is None else exp(rng.gauss(0, noise)) for _ in range(count)]
        count = next((look for look in LOOKS if look <= count and rule.is_met(ratios[:look])), count)
        base_ns, head_ns = [1e6] * count, [1e6 * ratio for ratio in ratios[:count]]
        changes += classify_comparison(base_ns, head_ns, "cpu", 2, rule).outcome in ("slower", "faster")
    assert changes / comparisons <= 0.005


@pytest.mark.parametrize(
    ("kind", "count"), [("cuda", 3), ("cuda", 5), ("cuda", 6), ("cpu", 6), ("cpu", 8), ("cpu", 12)]
)
def test_the_interval_of_any_number_of_rounds_holds_the_ratio_in_95_of_100_cases(kind: str, count: int) -> None:
    rng, drawn, held = random.Random(count), 1000, 0
    for _ in range(drawn):
        # Changes so plain that three rounds show them.
        head_ns = [8e6 * exp(rng.gauss(0, 0.02)) for _ in range(count)]
        verdict = classify_pairs([1e6] * count, head_ns, kind)
        assert verdict.low is not None
        assert verdict.high is not None
        held += verdict.low <= 8 <= verdict.high
    assert held / drawn >= 0.94


@pytest.mark.parametrize(
    ("outside", "freedom", "errors"),
    [(0.05, 1, 12.706), (0.05, 2, 4.303), (0.001, 3, 12.924), (0.001, 4, 8.610), (0.001, 5, 6.869), (0.01, 30, 2.750)],
)
def test_students_distribution_is_that_of_the_tables(outside: float, freedom: int, errors: float) -> None:
    assert student(outside, freedom) == pytest.approx(errors, abs=5e-4)


def test_the_times_shown_have_the_ratio_shown() -> None:
    base_ns, head_ns = [10.0, 11.6, 14.0], [10.7, 11.61, 10.0]
    base, head = times_of_rounds(base_ns, head_ns)
    assert base == 11.6, "the median of the head is 10.7, 8 % below"
    assert head == pytest.approx(11.61)
    assert times_of_rounds([], []) == (None, None)


@pytest.mark.parametrize(
    ("ratios", "limited", "unlimited"),
    [
        # Between the boundary for so few rounds and that for all.
        pytest.param([1.03] * 11, "slower", "slower", id="beyond the boundary"),
        pytest.param([1.03] * 7, "unsure", "slower", id="seven rounds show no 3 %"),
        pytest.param([0.99, 1.04] * 6, "unsure", "same", id="no slow-down of 5 %, and no rule that is met"),
        pytest.param([0.995, 1.005] * 4, "same", "same", id="excluded"),
    ],
)
def test_what_the_time_leaves_undecided_is_inconclusive(ratios: list[float], limited: str, unlimited: str) -> None:
    base, rule = [100_000.0] * len(ratios), stop_rule("cpu", is_suspected=False)
    head = [100_000.0 * ratio for ratio in ratios]
    assert classify_comparison(base, head, "cpu", 1, replace(rule, seconds=1.0)).outcome == limited
    assert classify_comparison(base, head, "cpu", 1, rule).outcome == unlimited


def test_the_time_is_over_before_a_round_that_would_end_too_late() -> None:
    rule = StopRule(6, 1.02, seconds=10.0)
    assert [rule.is_time_over(count, 1.3 * count) for count in (5, 6, 7)] == [False, False, True]
    assert not rule.is_time_over(5, 100.0), "six rounds are always taken"
    assert not StopRule(6, 1.02).is_time_over(50, 1e6)


def test_the_boundary_is_wide_at_first_and_ends_at_the_threshold() -> None:
    bounds = [early_ratio(1.005, count) for count in (*LOOKS, ROUNDS, 3 * ROUNDS)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] == bounds[-2] == pytest.approx(1.005)


def test_the_boundary_of_a_short_launch_grows_by_noise_and_not_by_the_nanoseconds_that_matter() -> None:
    rule = stop_rule("cuda", is_suspected=True).of_metric("launch", [9000.0])
    assert rule.ratio == pytest.approx(1.22, abs=0.01)
    assert [early_ratio(rule.ratio, count) for count in (6, 8, ROUNDS)] == [rule.ratio] * 3
    assert early_ratio(rule.ratio, 4) == pytest.approx(rule.ratio**3), "so few rounds cannot exclude chance"
    assert rule.is_met([1.42, 1.5, 1.61, 1.55, 1.48, 1.58])
    assert not rule.is_met([1.18, 1.5, 1.61, 1.55, 1.48, 1.58])


@pytest.mark.parametrize(
    ("numbers", "field"),
    [
        ((2, 1.005), "earliest"),
        ((11, 1.005), "earliest"),
        ((3, 1.0), "ratio"),
        ((3, 2.0), "ratio"),
        ((3, 1.005, 0.0), "seconds"),
        ((3, 1.005, float("nan")), "seconds"),
        ((3, 1.005, None, 1.004), "suspected"),
        ((3, 1.005, None, float("nan")), "suspected"),
        ((3, 1.005, None, None, 2), "plain"),
    ],
)
def test_a_rule_that_would_decide_by_chance_is_refused(numbers: tuple[Any, ...], field: str) -> None:
    with pytest.raises(ValueError, match=rf"stop\.{field}"):
        StopRule(*numbers)


@pytest.mark.parametrize(
    ("ratios", "ends"),
    [
        pytest.param([0.992, 1.008] * 3, True, id="no change, and none of 1 %"),
        pytest.param([0.992, 1.008] * 2, False, id="too few rounds to exclude it"),
        pytest.param([0.992, 1.012] * 3, False, id="one of 1 % is possible"),
        pytest.param([0.988, 1.008] * 3, False, id="one of 1 % the other way is possible"),
        pytest.param([1.001, 1.008] * 3, False, id="some change there is"),
    ],
)
def test_a_suspicion_ends_once_its_trial_dismisses_it(ratios: list[float], ends: bool) -> None:
    assert stop_rule("cuda", is_suspected=True).is_met(ratios) is ends
    assert not stop_rule("cuda", is_suspected=False).is_met(ratios)
    if ends:
        base_ns, head_ns = [1e5] * len(ratios), [1e5 * ratio for ratio in ratios]
        assert classify_trial(base_ns, head_ns, "cuda").outcome == "same"


def test_the_next_look_is_the_next_that_may_end_a_comparison() -> None:
    assert [StopRule(3, 1.005).next_look(count) for count in (0, 3, 4, 9, 10)] == [3, 4, 6, 10, None]
    assert [StopRule(7, 1.005).next_look(count) for count in (0, 3, 6, 8)] == [3, 8, 8, 10]
