"""A variant that waits where a timer is on its stack, so that another looks faster, is told by calls without one."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.harness.twice import twice
from warpwatch.contract.words import Fault
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.harness.timers import cpu
from warpwatch.worker.harness.timers.cpu import CpuColdTimer, CpuHotTimer, time_untimed


def files_of_callers() -> list[str]:
    frame, files = sys._getframe(), []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back  # type: ignore[assignment]
    return files


def waits_for(part: str) -> Callable[[Tensor], Tensor]:
    def double(x: Tensor) -> Tensor:
        if any(part in file for file in files_of_callers()):
            time.sleep(0.002)
        return 2 * x

    return double


def verify(problem: CaseProblem, timer: type[CpuHotTimer]) -> None:
    with problem.modes():
        timer(problem, 0, 10_000_000).verify()


def test_a_wait_for_a_timer_is_named_with_both_times() -> None:
    with pytest.raises(WrongResultError, match="waits where a timer is on its stack: a call takes 2") as named:
        verify(twice(waits_for("timers")), CpuHotTimer)
    assert named.value.fault is Fault.DETECTED_TIMER


def always_waits(x: Tensor) -> Tensor:
    time.sleep(0.002)
    return 2 * x


def waits_on_the_main_thread(x: Tensor) -> Tensor:
    """As for its threads of OpenMP, whose core other work keeps busy."""
    if threading.current_thread() is threading.main_thread():
        time.sleep(0.002)
    return 2 * x


@pytest.mark.parametrize(
    "function", [waits_for("nowhere"), waits_for("threading.py"), always_waits, waits_on_the_main_thread]
)
def test_a_call_that_takes_as_long_elsewhere_is_not(function: Callable[[Tensor], Tensor]) -> None:
    verify(twice(function), CpuHotTimer)


def test_a_fast_call_among_slow_ones_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a host with seventy busy processes, where no timed call had such luck."""
    monkeypatch.setattr(cpu, "time_untimed", lambda _calls: [1e3, 2e6, 2e6])
    verify(twice(always_waits), CpuHotTimer)


@pytest.mark.parametrize(("call_ns", "count"), [(1e3, 63), (2.5e6, 27), (6e7, 4), (7e7, 3)])
def test_calls_of_milliseconds_are_repeated_because_other_work_may_stop_the_first(
    call_ns: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_time_in_thread", lambda calls: [call_ns] * len(calls))
    assert len(time_untimed([torch.rand] * 3)) == count


def test_single_calls_on_cold_data_are_not_compared_with_calls_in_a_row() -> None:
    verify(twice(waits_for("timers")), CpuColdTimer)


def test_calls_that_nothing_times_see_no_code_of_the_harness_and_the_same_modes() -> None:
    seen: list[tuple[bool, bool]] = []

    def look() -> None:
        seen.append((any("harness" in file for file in files_of_callers()[2:]), torch.is_grad_enabled()))

    with torch.no_grad():
        assert all(0 < time < math.inf for time in time_untimed([look, look]))
    assert set(seen) == {(False, False)}


def test_a_call_that_fails_in_a_thread_of_its_own_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _arguments: None)
    assert time_untimed([lambda: 1 / 0]) == [math.inf]
