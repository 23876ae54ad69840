"""Tests the description of samples on synthetic sets with known properties."""

from __future__ import annotations

import math
import random

import pytest

from warpwatch.worker.harness.timers.summary import (
    FEWEST_DESCRIBED,
    describe,
    drift_of,
    effective_size,
    interval,
    modes_of,
    outlier_share,
    summarize,
)


def chained(source: random.Random, count: int, dependence: float) -> list[float]:
    """Normal numbers around 100 with first-order autoregression."""
    value, samples = source.gauss(0, 1), []
    for _ in range(count):
        value = dependence * value + source.gauss(0, math.sqrt(1 - dependence**2))
        samples.append(100 + value)
    return samples


@pytest.mark.parametrize("count", [60, 300])
def test_one_mode_is_not_called_two(count: int) -> None:
    source = random.Random(4)
    shapes = [
        lambda: source.gauss(100, 3),
        lambda: source.uniform(90, 110),
        lambda: 100 + source.expovariate(0.1),
        lambda: 100 * source.lognormvariate(0, 0.3),
    ]
    for shape in shapes:
        bimodal = sum(bool(modes_of([shape() for _ in range(count)])) for _ in range(100))
        assert bimodal <= 3, f"{bimodal} of 100 sets of {count}"


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_two_modes_are_found_with_their_places_and_shares(share: float) -> None:
    source = random.Random(5)
    samples = [source.gauss(100 if source.random() < share else 106, 0.8) for _ in range(300)]
    first, second = modes_of(samples)
    assert first.share == pytest.approx(share, abs=0.08)
    assert first.share + second.share == pytest.approx(1)
    assert {round(first.ns), round(second.ns)} == {100, 106}
    # Modes that are one step of the clock apart do not count.
    assert modes_of([1000 + 2 * (index % 2) for index in range(100)]) == []


def test_drift_is_found_and_not_invented() -> None:
    source = random.Random(6)
    rising = [100 + 3 * index / 200 + source.gauss(0, 1) for index in range(200)]
    drift, chance = drift_of(rising)
    assert drift == pytest.approx(0.03, abs=0.01)
    assert chance < 1e-6
    assert drift_of(rising[::-1])[0] == pytest.approx(-drift)
    invented = sum(drift_of(chained(source, 200, 0.6))[1] < 0.01 for _ in range(200))
    assert invented <= 10
    assert drift_of([5.0] * 40) == (0.0, 1.0)


@pytest.mark.parametrize("dependence", [0.0, 0.6, 0.9])
def test_the_interval_covers_as_often_as_it_says_when_samples_depend_on_each_other(dependence: float) -> None:
    source = random.Random(7)
    hits = 0
    for _ in range(300):
        _, low, high = interval(chained(source, 300, dependence))
        hits += low <= 100 <= high
    assert hits >= 0.92 * 300


def test_dependent_samples_count_for_fewer() -> None:
    source = random.Random(8)
    assert effective_size([source.gauss(0, 1) for _ in range(400)]) > 300
    assert effective_size(chained(source, 400, 0.9)) < 80
    assert effective_size([1.0] * 50) == 50


def test_outliers_lie_far_from_every_mode() -> None:
    samples = [100 + 0.1 * (index % 7) for index in range(95)] + [150.0] * 5
    assert outlier_share(samples, [100.3]) == pytest.approx(0.05)
    assert outlier_share([*samples, *[150.0] * 5], [100.3, 150.0]) == 0.0


def test_a_measurement_carries_its_distribution() -> None:
    source = random.Random(9)
    samples = [source.gauss(100 if index % 2 else 106, 0.5) for index in range(100)]
    description = summarize("hot", samples).distribution
    assert description is not None
    assert [round(mode.ns) for mode in description.modes] in ([100, 106], [106, 100])
    assert description.autocorrelation < -0.5
    assert (description.outliers, description.effective) == (0.0, 100)
    assert describe(samples[: FEWEST_DESCRIBED - 1]) is None
    assert summarize("hot", samples[:5]).distribution is None
