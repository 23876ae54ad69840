"""Numbers, times and names as people read them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from warpwatch.server.reports import formats
from warpwatch.server.reports.formats import NOTABLE_CHANGE
from warpwatch.server.reports.wording import change_headline, change_tone


def plain(text: str) -> str:
    return text.replace("\u2009", " ").replace("\u2212", "-")


@pytest.mark.parametrize(
    ("ns", "digits", "text"),
    [
        (None, 3, "–"),
        (0, 3, "0 ns"),
        (842, 3, "842 ns"),
        (1000, 3, "1.00 µs"),
        (12_345, 3, "12.3 µs"),
        (12_345, 4, "12.35 µs"),
        (999_900, 3, "1.00 ms"),
        (1_234_567, 4, "1.235 ms"),
        (6.3e9, 2, "6.3 s"),
        (120e9, 3, "120 s"),
    ],
)
def test_durations_have_the_unit_that_fits(ns: float | None, digits: int, text: str) -> None:
    assert plain(formats.duration(ns, digits)) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (None, ""),
        (1.0, "±0.0 %"),
        (1.0004, "±0.0 %"),
        (1.17, "+17.0 %"),
        (0.9, "-10.0 %"),
        (0.25, "-75.0 %"),
        (6.0, "×6.00"),
    ],
)
def test_changes_are_signed(ratio: float | None, text: str) -> None:
    assert plain(formats.change(ratio)) == text


def test_a_change_within_the_noise_has_no_direction() -> None:
    assert formats.direction(1 + NOTABLE_CHANGE / 2) == "same"
    assert formats.direction(1.10, noise=0.02) == "slower"
    assert formats.direction(1.10, noise=0.08) == "same"
    assert formats.direction(0.80, noise=0.02) == "faster"
    assert formats.direction(None) == "same"


def test_small_shares_do_not_look_like_nothing() -> None:
    assert plain(formats.share(0.004)) == "0.4 %"
    assert plain(formats.share(0.61)) == "61 %"
    assert formats.share(None) == "–"


def test_quantities_and_sizes() -> None:
    assert plain(formats.quantity(268_435_456, "FLOP")) == "268 MFLOP"
    assert plain(formats.quantity(3.0e12, "B/s")) == "3.00 TB/s"
    assert plain(formats.quantity(12)) == "12"
    assert plain(formats.size(33_554_432)) == "32.0 MiB"
    assert plain(formats.size(17)) == "17 B"


@pytest.mark.parametrize(
    ("value", "written"),
    [(2.5, "2.50 J"), (0.99996, "1.00 J"), (0.0123, "12.3 mJ"), (8.2e-6, "8.20 µJ"), (4e-9, "4.00 nJ"), (0.0, "0 nJ")],
)
def test_energies_have_the_unit_that_suits_them(value: float, written: str) -> None:
    assert plain(formats.joules(value)) == written


def test_ages_are_short_and_old_ones_are_days() -> None:
    now = datetime(2026, 3, 10, 12, tzinfo=UTC)
    assert formats.ago(now - timedelta(seconds=20), now) == "just now"
    assert plain(formats.ago(now - timedelta(minutes=61), now)) == "1 h ago"
    assert plain(formats.ago(now - timedelta(days=3), now)) == "3 d ago"
    assert formats.ago(now - timedelta(days=80), now) == "2025-12-20"


def test_the_line_that_says_most() -> None:
    assert formats.headline("Traceback (most recent call last):\n  File\nValueError: no") == "ValueError: no"
    assert formats.headline("y is wrong\nreplay with --seed 7") == "y is wrong"
    assert formats.headline("") == ""
    ninja = "FAILED: [code=1] a.o\nc++ -c a.cpp\na.cpp:3:5: error: expected ';'\nninja: build stopped"
    assert formats.headline(ninja) == "a.cpp:3:5: error: expected ';'"
    assert formats.headline("[1/2] nvcc\na.cu(41): error: expected a ';'") == "a.cu(41): error: expected a ';'"
    assert formats.headline("relative error 0.4\nno error here") == "relative error 0.4"


def test_an_error_without_bound_is_infinite() -> None:
    assert [plain(formats.sci(value)) for value in (None, 0.0, 1.2e-7, sys.float_info.max)] == [
        "–",
        "0",
        "1.2e-07",
        "∞",
    ]


def test_names_are_sorted_as_people_do() -> None:
    assert sorted(["cublas", "v10", "v2", "triton"], key=formats.variant_order) == ["v2", "v10", "cublas", "triton"]
    assert sorted(["n=128,f32", "n=16,f32", "3x3"], key=formats.natural) == ["3x3", "n=16,f32", "n=128,f32"]


def regression(
    verdict: str,
    direction: str,
    ratio: float | None,
    low: float | None,
    high: float | None,
    phase: str = "culprit",
    **more: Any,
) -> Any:
    fields = {"id": 7, "head_sha": "a" * 40, "left_ratio": None, "can_confirm": False, "series": 4, "fixed_series": 0}
    values = {"verdict": verdict, "direction": direction, "ratio": ratio, "low": low, "high": high, "phase": phase}
    return SimpleNamespace(
        **fields | {"state": "new", "partly_fixed_by_sha": None, "signal": None, "other_ratio": None} | values | more
    )


PARTLY: dict[str, Any] = {"left_ratio": 1.014, "fixed_series": 3, "partly_fixed_by_sha": "540575bc" + "0" * 32}


@pytest.mark.parametrize(
    ("row", "text", "tone"),
    [
        (regression("confirmed", "slower", 1.217, 1.19, 1.23), "+21.7 % slower", "slower"),
        (regression("confirmed", "faster", 0.8, 0.79, 0.81), "−20.0 % faster", "faster"),
        (regression("confirmed", "broken", None, None, None), "broken", "slower"),
        (regression("confirmed", "broken", None, None, None, "reverted"), "broken", "plain"),
        (regression("dismissed", "slower", 0.996, 0.986, 1.018), "No change (−0.4 %)", "plain"),
        (regression("unsure", "slower", 1.01, 0.99, 1.04), "Inconclusive (+1.0 %)", "plain"),
        (regression("suspected", "slower", 1.05, None, None, can_confirm=True), "+5.0 % suspected", "suspected"),
        (
            regression("suspected", "slower", 0.95, None, None, "unpaired"),
            "−5.0 % suspected, cannot be confirmed",
            "suspected",
        ),
        (
            regression("confirmed", "slower", 2.312, 2.2, 2.4, **PARTLY),
            "+1.4 % slower, 1 of 4 cases; 3 fixed by 540575bc",
            "slower",
        ),
        (regression("confirmed", "slower", 1.2, 1.1, 1.3, "fixed", fixed_series=4), "+20.0 % slower", "plain"),
    ],
)
def test_the_headline_of_a_regression_follows_its_ratio(row: Any, text: str, tone: str) -> None:
    assert change_headline(row).replace("\u2009", " ") == text
    assert change_tone(row) == tone
