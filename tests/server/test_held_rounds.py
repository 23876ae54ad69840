"""What rounds say of a change that nobody suspected: false alarms stay rare however many pairs are compared, and real
ones are seen."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from warpwatch.contract.measurement import LONGEST_NS, SHORTEST_NS
from warpwatch.contract.words import Reason
from warpwatch.server.verdicts.held import PairVerdict, classify_comparison, classify_pairs, classify_trial
from warpwatch.server.verdicts.noise import Reading, detectable, learn
from warpwatch.server.verdicts.thresholds import THRESHOLDS, kind_of_time, stop_rule, thresholds_of

PAIRS, SUBMISSIONS = 100, 150


def rounds(
    rng: random.Random, ratio: float, noise: float, base_ns: float = 10_000.0, count: int = 12
) -> tuple[list[float], list[float]]:
    """Rounds with a common drift, and with tails: one slice in twenty is a good deal slower."""

    def one() -> float:
        return rng.gauss(1, noise) * (1 + (0.2 if rng.random() < 0.05 else 0))

    drift = [rng.gauss(1, 0.05) for _ in range(count)]
    return [base_ns * d * one() for d in drift], [base_ns * ratio * d * one() for d in drift]


@pytest.mark.parametrize(("kind", "noise"), [("cuda", 0.005), ("cpu", 0.03)])
def test_many_pairs_without_a_change_raise_no_alarm(kind: str, noise: float) -> None:
    rng = random.Random(kind)
    alarms = sum(
        any(classify_pairs(*rounds(rng, 1.0, noise), kind, PAIRS).outcome in ("slower", "faster") for _ in range(PAIRS))
        for _ in range(SUBMISSIONS)
    )
    assert alarms / SUBMISSIONS <= 0.05, f"{alarms} of {SUBMISSIONS} submissions of {PAIRS} pairs"


@pytest.mark.parametrize(
    ("kind", "noise", "ratio", "least"),
    [("cuda", 0.005, 1.03, 0.95), ("cuda", 0.005, 0.97, 0.95), ("cpu", 0.02, 1.15, 0.95)],
)
def test_changes_are_seen_among_many_pairs(kind: str, noise: float, ratio: float, least: float) -> None:
    rng = random.Random(kind)
    told = Counter(classify_pairs(*rounds(rng, ratio, noise), kind, PAIRS).outcome for _ in range(400))
    assert told["slower" if ratio > 1 else "faster"] / 400 >= least, told


@pytest.mark.parametrize("among", [1, 30])
@pytest.mark.parametrize(("kind", "noise"), [("cuda", 0.001), ("cuda", 0.005), ("cpu", 0.01), ("cpu", 0.03)])
def test_the_slow_down_that_is_said_to_be_found_is_found_in_95_of_100_comparisons(
    kind: str, noise: float, among: int
) -> None:
    """Each comparison of identical code says which slow-down it finds, and another one is made with that slow-down."""
    rng, rule, count = random.Random(f"{kind} {noise} {among}"), stop_rule(kind, is_suspected=False), 400

    def compare(ratio: float) -> PairVerdict:
        base, head = rounds(rng, ratio, noise, 100_000.0)
        ratios = [after / before for before, after in zip(base, head, strict=True)]
        end = next((number for number in range(3, 12) if rule.is_met(ratios[:number])), 12)
        return classify_pairs(base[:end], head[:end], kind, among)

    said = [compare(1.0) for _ in range(count)]
    assert sum(verdict.false_alarm for verdict in said) / count < 0.025
    least = [verdict.detectable for verdict in said if verdict.detectable is not None]
    assert len(least) == count
    found = sum(compare(1 + size).outcome == "slower" for size in least)
    assert found / count >= 0.91
    smaller = sum(compare(1 + size / 2).outcome == "slower" for size in least)
    assert smaller / count < 0.75, "a slow-down of half the size is often missed, so the figure is no mere bound"


@pytest.mark.parametrize(("protocol", "outcome"), [("google-benchmark", "slower"), ("1", "same")])
def test_only_times_of_the_harness_have_a_least_absolute_change(protocol: str, outcome: str) -> None:
    """A program's mean over many iterations shows single nanoseconds, which no clock of the harness does."""
    base = [12.0 + number % 3 / 100 for number in range(12)]
    kind = kind_of_time("cpu", "hot", protocol)
    assert classify_pairs(base, [4 * value for value in base], kind).outcome == outcome


def test_rounds_that_controls_object_to_or_that_are_too_few_find_nothing_for_certain() -> None:
    base, head = rounds(random.Random(1), 1.0, 0.005)
    assert classify_pairs(base, head, "cuda").detectable is not None
    for reason in (Reason.CONTROL_MOVED, Reason.CONTROL_MISSED):
        assert classify_pairs(base, head, "cuda", reason=reason).detectable is None
        assert classify_trial(base, head, "cuda", reason).detectable is None
    assert classify_pairs(base[:2], head[:2], "cuda").detectable is None
    assert classify_pairs(base[:4], head[:4], "cuda", planned=4).detectable is None


def test_fewer_rounds_and_a_limit_of_time_find_less() -> None:
    base, head = rounds(random.Random(2), 1.0, 0.005)
    few = classify_comparison(base[:6], head[:6], "cuda", 1, None)
    limited = classify_comparison(base[:6], head[:6], "cuda", 1, replace(stop_rule("cuda", False), seconds=1.0))
    all_rounds = classify_comparison(base, head, "cuda", 1, None)
    assert few.detectable == limited.detectable
    assert few.detectable is not None
    assert all_rounds.detectable is not None
    assert few.detectable > 1.2 * all_rounds.detectable


def test_the_times_of_short_kernels_hide_slow_downs_below_the_least_change() -> None:
    verdict = classify_pairs([500.0] * 12, [500.0] * 12, "cuda")
    assert verdict.detectable == pytest.approx(THRESHOLDS["cuda"].least_ns / 500)


def test_what_few_or_noisy_rounds_leave_open_is_unsure() -> None:
    assert classify_pairs([], [], "cuda").outcome == "unsure"
    assert classify_pairs([1e4] * 2, [2e4] * 2, "cuda").outcome == "unsure"
    assert classify_pairs([1e4] * 5, [1.01e4] * 5, "cuda").outcome == "unsure"
    assert classify_pairs([1e4] * 5, [1e4] * 5, "cuda").outcome == "unsure"
    assert classify_pairs([1e4] * 12, [1e4 * (1.2 if n % 2 else 0.9) for n in range(12)], "cuda").outcome == "unsure"
    assert classify_pairs([1e4] * 12, [1e4 * (1.001 if n % 2 else 0.999) for n in range(12)], "cuda").outcome == "same"


def test_rounds_that_leave_a_speed_up_open_are_not_slower_rather_than_no_change() -> None:
    ratios = [0.88 if n % 2 else 0.995 for n in range(12)]
    assert classify_pairs([1e4] * 12, [1e4 * ratio for ratio in ratios], "cpu").outcome == "not_slower"
    short = classify_pairs([300.0] * 12, [300.0 * ratio for ratio in ratios], "cpu")
    assert short.outcome == "same", "36 ns are below the least change"
    missed = classify_pairs([1e4] * 12, [1e4 * ratio for ratio in ratios], "cpu", reason=Reason.CONTROL_MISSED)
    assert missed.outcome == "unsure"


def test_a_few_nanoseconds_are_no_change() -> None:
    assert classify_pairs([500.0] * 12, [500.0 + THRESHOLDS["cuda"].least_ns - 1] * 12, "cuda").outcome == "same"
    assert classify_pairs([500.0] * 12, [500.0 + THRESHOLDS["cuda"].least_ns + 1] * 12, "cuda").outcome == "slower"


@pytest.mark.parametrize("kind", list(THRESHOLDS))
def test_times_that_differ_as_far_as_times_can_are_numbers_still(kind: str) -> None:
    extremes = [SHORTEST_NS, LONGEST_NS] * 3
    assert classify_pairs(extremes, extremes[::-1], kind, among=100_000).outcome == "unsure"
    readings = [Reading(n, n, 1, value, SHORTEST_NS, LONGEST_NS) for n, value in enumerate(extremes)]
    assert 1 < detectable(learn(readings, kind), kind) < 1e100


@pytest.mark.parametrize(("ratio", "outcome"), [(1.1, "slower"), (0.9, "faster"), (1.0, "same")])
def test_a_trial_decides_with_the_rounds_after_which_it_may_end(ratio: float, outcome: str) -> None:
    base = [10_000.0, 10_050.0, 9_980.0]
    head = [value * ratio * jitter for value, jitter in zip(base, (1.0, 1.002, 0.999), strict=True)]
    verdict = classify_trial(base, head, "cpu")
    assert verdict.outcome == outcome
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.low <= ratio <= verdict.high
    assert classify_pairs(base, head, "cpu").outcome == "unsure", "three rounds decide nothing that was not suspected"


@pytest.mark.parametrize(("kind", "ratio"), [("cuda", 1.08), ("cuda", 0.92), ("cpu", 1.2), ("cpu", 0.8)])
def test_a_plain_change_needs_no_suspicion(kind: str, ratio: float) -> None:
    times, rule = [10_000.0, 10_050.0, 9_980.0], stop_rule(kind, is_suspected=False)
    base = times if kind == "cuda" else 2 * times
    head = [value * ratio * jitter for value, jitter in zip(base, (1.0, 1.002, 0.999) * 2, strict=False)]
    assert rule.is_met([after / before for before, after in zip(base, head, strict=True)])
    assert classify_pairs(base, head, kind, PAIRS).outcome == ("slower" if ratio > 1 else "faster")
    assert classify_pairs(base, head, kind, PAIRS, Reason.CONTROL_MOVED).outcome == "unsure"
    fewer = slice(thresholds_of(kind).earliest_plain - 1)
    assert classify_pairs(base[fewer], head[fewer], kind).outcome == "unsure"
