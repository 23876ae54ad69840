"""The detector on public timings of an H100: the shares that docs/decisions/change-detection.md states, so
that no change of a constant goes unseen."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from bench.detectors.rules import RULES, ours
from bench.detectors.series import Series, load_controls, synthesize, with_step
from bench.verdicts import (
    DATA,
    TUNED_ON,
    confirmed,
    paired_measured,
    paired_normal,
    tally_later,
    tally_online,
    tally_stages,
)

STEPS = (1.05, 1.10)


@pytest.fixture(scope="module")
def controls() -> list[Series]:
    return load_controls(Path(DATA))


def test_the_controls_are_those_of_the_readme(controls: list[Series]) -> None:
    assert len(controls) == 309
    assert {one.readings[index].ordinal for one in controls for index in one.shifts} == {32}, (
        "one shift of the framework, in the last run"
    )
    assert sum(len(one.shifts) for one in controls) == 32
    repeated = [
        one
        for one in controls
        if any(a.commit_id == b.commit_id for a, b in zip(one.readings, one.readings[1:], strict=False))
    ]
    assert len(repeated) > 250


def test_alarms_without_waiting(controls: list[Series]) -> None:
    tally = tally_online(ours, controls, 2, STEPS)
    assert tally.false_share <= 0.002
    assert tally.share(1.05) >= 0.70
    assert tally.share(1.10) >= 0.78
    untouched = tally_online(ours, [one for one in controls if one.kernel not in TUNED_ON], 2, STEPS)
    assert untouched.false_share <= 0.002
    assert untouched.share(1.10) >= 0.82, "kernels that no constant was tuned on"


def test_later_runs_take_alarms_back_and_find_more(controls: list[Series]) -> None:
    online, later = tally_online(ours, controls[::3], 2, STEPS), tally_later(ours, controls[::3], 2, STEPS)
    assert later.false_share <= online.false_share + 0.001
    assert later.share(1.05) >= online.share(1.05)


def test_no_rule_that_is_as_quiet_sees_as_much(controls: list[Series]) -> None:
    some = controls[::8]
    own = tally_online(ours, some, 2, STEPS)
    for name in ("z = 5", "windowed t > 7"):
        assert tally_online(RULES[name], some, 2, STEPS).share(1.05) < own.share(1.05)


def test_a_comparison_decides_what_history_cannot(controls: list[Series]) -> None:
    draw = random.Random(1)
    assert not any(confirmed(paired_normal, draw, 1.0, 1.03) for _ in range(3000))
    assert all(confirmed(paired_normal, draw, 1.03, 1.03) for _ in range(300))
    by_times, by_code = (
        tally_stages(controls[::4], 1, paired_normal, code_changed=code, later=True) for code in (False, True)
    )
    assert by_times.compared <= 0.1
    assert by_times.confirmed >= 0.6
    assert by_code.confirmed >= 0.95


@pytest.mark.parametrize(
    ("shape", "false", "found"),
    [
        ("quiet", 0, 0.95),
        ("drift", 0, 0.95),
        ("wandering", 0.001, 0.95),
        ("heavy tails", 0.002, 0.9),
        ("outliers", 0.003, 0.8),
        ("bimodal", 0.01, 0.3),
    ],
)
def test_synthetic_series(shape: str, false: float, found: float) -> None:
    """Of two speeds 8 % apart, by chance, a step of 10 % is hardly told."""
    tally = tally_later(ours, synthesize(shape, 20), 1, STEPS)
    assert tally.false_share <= false
    assert tally.share(1.10) >= found


def test_a_step_is_put_into_all_of_an_interval(controls: list[Series]) -> None:
    before = controls[0].readings
    after = with_step(before, 5, 1.1)
    assert after[:5] == before[:5]
    assert after[5].low_ns / before[5].low_ns == pytest.approx(1.1)
    assert after[5].high_ns / after[5].median_ns == pytest.approx(before[5].high_ns / before[5].median_ns)


def test_rounds_that_were_measured_may_be_drawn_from() -> None:
    rounds = [[(100.0, 100.1), (100.2, 100.0), (99.9, 100.0)]]
    draw = random.Random(1)
    assert confirmed(partial(paired_measured, rounds), draw, 1.03, 1.03)
    assert not confirmed(partial(paired_measured, rounds), draw, 1.0, 1.03)
