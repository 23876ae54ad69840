"""Where the time of a run goes, as the worker adds it up."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path

import pytest

from tests.worker.conftest import Diary
from tests.worker.test_child import ask, start
from warpwatch.contract import activities
from warpwatch.contract.activities import Activity, RunTimes, Stopwatch
from warpwatch.contract.codec import from_json, to_json


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets seconds pass on the stopwatch's clock."""
    now = 100.0

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(activities, "perf_counter", lambda: now)
    return pass_time


def test_an_activity_interrupts_the_one_around_it(pass_time: Callable[[float], None]) -> None:
    stopwatch = Stopwatch()

    @stopwatch.measure(Activity.INPUTS)
    def draw() -> None:
        pass_time(2)

    with stopwatch.measure(Activity.VERIFY):
        pass_time(1)
        draw()
        with suppress(KeyError), stopwatch.measure(Activity.ORACLE):
            pass_time(4)
            raise KeyError
        draw()
        pass_time(8)
    pass_time(16)
    assert stopwatch.take() == RunTimes(inputs=4, oracle=4, verify=9)
    assert stopwatch.take() == RunTimes()


def test_times_of_another_process_take_no_longer_than_it_was_asked(pass_time: Callable[[float], None]) -> None:
    stopwatch = Stopwatch()
    stopwatch.add(RunTimes(inputs=30, samples=10).within(20))
    stopwatch.add(RunTimes(samples=1).within(20))
    assert stopwatch.take() == RunTimes(inputs=15, samples=6)


@pytest.mark.parametrize("value", [-1.0, inf, "long"])
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="oracle"):
        from_json(RunTimes, to_json(RunTimes()) | {"oracle": value})


def test_a_child_that_boasts_of_its_times_is_bounded(tmp_path: Path, diary: Diary) -> None:
    child = start(tmp_path, diary)
    try:
        begin = time.monotonic()
        ask(child, diary, "boast")
        assert 0 < child.times.samples <= time.monotonic() - begin
        assert child.times.total == pytest.approx(child.times.samples)
        assert ask(child, diary, "no times") == {"status": "ok"}
        assert child.times == RunTimes()
    finally:
        child.close()
