"""Four cells say whether code, toolchain, both or neither changed a time, and never blame the code by chance; a list of
toolchains is bisected like commits."""

from __future__ import annotations

from math import ceil, log2

import pytest

from bench.attribution import CASES, DATA, load_noise, plant
from warpwatch.contract.rounds import CellRounds
from warpwatch.contract.words import ChangeOrigin, Verdict
from warpwatch.server.verdicts.attribution import FEWEST_ROUNDS, attribute, judge_toolchains, search_places

BLAMES_CODE = (ChangeOrigin.CODE, ChangeOrigin.BOTH)


def cells(head_old: float, base_new: float, head_new: float, rounds: int = 12, noise: float = 0.001) -> CellRounds:
    """Rounds of four cells, over a base of 100 µs under the old toolchain, with a spread that repeats."""
    wave = [1 + noise * ((7 * number) % 5 - 2) for number in range(rounds)]
    times = [[1e5 * factor * wave[-number % rounds] for number in range(rounds)] for factor in (1, head_old)]
    later = [[1e5 * factor * wave[number - 3] for number in range(rounds)] for factor in (base_new, head_new)]
    return CellRounds(times[0], times[1], later[0], later[1])


@pytest.mark.parametrize(
    ("factors", "origin"),
    [
        ((1.0, 1.0, 1.0), ChangeOrigin.NEITHER),
        ((1.05, 1.0, 1.05), ChangeOrigin.CODE),
        ((0.9, 1.0, 0.9), ChangeOrigin.CODE),
        ((1.0, 1.05, 1.05), ChangeOrigin.TOOLCHAIN),
        ((1.0, 1.45, 1.45), ChangeOrigin.TOOLCHAIN),
        ((1.05, 1.1, 1.155), ChangeOrigin.BOTH),
        ((1.1, 1 / 1.1, 1.0), ChangeOrigin.BOTH),  # They cancel out, and both did something.
        ((1.0, 1.0, 1.1), ChangeOrigin.BOTH),  # The code is slower under the new compiler alone.
        ((1.0, 1.1, 1.0), ChangeOrigin.BOTH),  # The commit works around what the new compiler does.
    ],
)
def test_the_origin_of_a_change(factors: tuple[float, float, float], origin: ChangeOrigin) -> None:
    assert attribute(cells(*factors), "cuda").origin == origin


def test_effects_are_reported_with_intervals() -> None:
    result = attribute(cells(1.05, 1.1, 1.155), "cuda")
    for effect, truth in ((result.code, 1.05), (result.toolchain, 1.1), (result.total, 1.155)):
        assert effect.verdict == Verdict.CONFIRMED
        assert effect.ratio == pytest.approx(truth, abs=0.004)
        assert effect.ratio is not None
        assert effect.low is not None
        assert effect.high is not None
        assert effect.low <= effect.ratio <= effect.high


def test_few_or_noisy_rounds_blame_nobody() -> None:
    assert attribute(cells(1.2, 1, 1.2, rounds=FEWEST_ROUNDS - 1), "cuda").origin == ChangeOrigin.UNKNOWN
    assert attribute(cells(1.01, 1, 1.01, noise=0.05), "cuda").origin == ChangeOrigin.UNKNOWN
    assert attribute(cells(1.005, 1, 1.005), "cpu").origin == ChangeOrigin.NEITHER, "within 2 % on a CPU"


def test_sixty_planted_changes_with_real_noise() -> None:
    results = list(plant(load_noise(DATA), 36))
    assert len(results) == CASES
    assert sum(result.origin == origin for origin, result in results) >= 57
    assert not [origin for origin, result in results if result.origin in BLAMES_CODE and origin not in BLAMES_CODE]


def test_no_noise_of_any_series_blames_the_code() -> None:
    """Series of which single runs lie off by tens of percent are left unknown."""
    results = list(plant(load_noise(DATA, 1.0), 36))
    assert not [origin for origin, result in results if result.origin in BLAMES_CODE and origin not in BLAMES_CODE]


def test_one_commit_under_two_toolchains() -> None:
    assert judge_toolchains([100.0] * 8, [145.0] * 8, "cuda").verdict == Verdict.CONFIRMED
    assert judge_toolchains([100.0] * 8, [100.1] * 8, "cuda").verdict == Verdict.DISMISSED


@pytest.mark.parametrize("guilty", range(1, 9))
def test_a_list_of_toolchains_is_bisected(guilty: int) -> None:
    asked: list[tuple[int, int]] = []

    def changed(old: int, new: int) -> bool:
        asked.append((old, new))
        return old < guilty <= new

    assert search_places(9, changed) == (guilty - 1, guilty)
    assert len(asked) <= 1 + ceil(log2(8))


def test_a_toolchain_that_does_not_run_is_skipped() -> None:
    assert search_places(5, lambda old, new: None if new == 2 else old < 2 <= new) == (1, 3)
    assert search_places(5, lambda old, new: False) is None
