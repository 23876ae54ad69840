"""The rules of verdicts, on numbers alone."""

from __future__ import annotations

import random
from math import comb

import pytest

from warpwatch.contract.rounds import median_interval
from warpwatch.server.verdicts.paired import Decided, decide


def test_the_interval_of_a_median_is_between_order_statistics() -> None:
    values = [float(n) for n in range(12)]
    random.Random(1).shuffle(values)
    # With 12 values the 3rd and the 10th: fewer than 3 or more than 9 of 12 fall below the median with 3.9 %.
    assert median_interval(values) == (2.0, 9.0)
    assert 2 * sum(comb(12, k) for k in range(3)) / 2**12 <= 0.05 < 2 * sum(comb(12, k) for k in range(4)) / 2**12


def test_too_few_values_have_no_interval() -> None:
    assert median_interval([1.0] * 5) is None
    assert median_interval([]) is None
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == (1.0, 6.0)


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    generator = random.Random(7)
    intervals = [median_interval([generator.lognormvariate(0, 0.3) for _ in range(15)]) for _ in range(2000)]
    hits = sum(low <= 1 <= high for low, high in intervals if low is not None)  # type: ignore[misc]
    assert 0.94 <= hits / 2000 <= 0.99


def rounds(ratio: float, noise: float = 0.002, count: int = 12) -> tuple[list[float], list[float]]:
    """Paired rounds that drift together, as a warming machine makes them."""
    generator = random.Random(3)
    drift = [10_000 * (1 + 0.02 * number) for number in range(count)]
    return [d * generator.gauss(1, noise) for d in drift], [ratio * d * generator.gauss(1, noise) for d in drift]


@pytest.mark.parametrize(
    ("ratio", "direction", "suspected", "device_kind", "decision"),
    [
        (1.30, "slower", 1.3, "cpu", "confirmed"),
        (0.75, "faster", 0.75, "cpu", "confirmed"),
        (1.00, "slower", 1.1, "cpu", "dismissed"),
        (1.00, "faster", 0.9, "cpu", "dismissed"),
        (0.80, "slower", 1.1, "cpu", "dismissed"),
        (1.25, "faster", 0.9, "cpu", "dismissed"),
        (1.01, "slower", 1.1, "cpu", "dismissed"),
        (1.021, "slower", 1.1, "cpu", "unsure"),
        (1.01, "slower", 1.1, "cuda", "confirmed"),
        (1.00, "slower", 1.1, "cuda", "dismissed"),
    ],
)
def test_decide(ratio: float, direction: str, suspected: float, device_kind: str, decision: str) -> None:
    found = decide(*rounds(ratio), direction, suspected, device_kind)  # type: ignore[arg-type]
    assert found.decision == decision
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.high
    assert found.ratio == pytest.approx(ratio, rel=0.003)


def test_rounds_too_noisy_to_rule_the_change_out_are_unsure() -> None:
    heads = [
        7_000.0,
        13_000.0,
        8_000.0,
        12_500.0,
        9_000.0,
        12_000.0,
        8_500.0,
        11_800.0,
        9_500.0,
        11_500.0,
        9_900.0,
        10_100.0,
    ]
    assert decide([10_000.0] * 12, heads, "slower", 1.1, "cpu").decision == "unsure"
    assert decide([10_000.0] * 12, heads, "slower", 1.5, "cpu").decision == "dismissed"


def test_too_few_rounds_are_unsure() -> None:
    assert decide(*rounds(1.5, count=2), "slower", 1.5, "cuda") == Decided("unsure")
