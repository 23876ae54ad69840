"""The table of thresholds: every value has a unit and a meaning, and unknown device kinds are refused."""

from __future__ import annotations

from dataclasses import fields

import pytest

from warpwatch.server.verdicts.thresholds import THRESHOLDS, ShiftRule, Thresholds, list_thresholds, thresholds_of


def test_every_threshold_is_listed_with_its_unit_and_meaning() -> None:
    rows = list_thresholds()
    rules = {"suspicion", "alarm"}
    expected = {item.name for item in fields(Thresholds)} - rules
    expected |= {f"{rule}.{item.name}" for rule in rules for item in fields(ShiftRule)}
    assert {row.name for row in rows} == expected
    assert all(row.unit and row.meaning.endswith(".") and set(row.values) == {"cuda", "cpu", "launch"} for row in rows)


def test_an_alarm_needs_a_larger_shift_than_a_suspicion() -> None:
    for thresholds in THRESHOLDS.values():
        for deviation in (0.0, 0.01, 0.1):
            assert thresholds.alarm.threshold(deviation) > thresholds.suspicion.threshold(deviation)
        assert 1 < thresholds.confirm_ratio < thresholds.expected_ratio < thresholds.plain_ratio
        assert thresholds.few_rounds < thresholds.rounds < thresholds.more_rounds


def test_an_unknown_device_kind_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'tpu'.*cuda, cpu"):
        thresholds_of("tpu")
