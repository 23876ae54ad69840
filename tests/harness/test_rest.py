"""A process that works while nothing is asked of it is told from one that only waits, also on a busy host."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from warpwatch.contract.words import Fault
from warpwatch.worker.harness.checks import rest
from warpwatch.worker.harness.checks.rest import IdleTimes, expect_rest
from warpwatch.worker.harness.failures import WrongResultError

CPU = torch.device("cpu")


@contextmanager
def spinning(seconds: float = 60.0) -> Iterator[None]:
    """A thread that spins for so long, or until the end of the block."""
    end = threading.Event()

    def spin() -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not end.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    yield
    end.set()
    thread.join()


def test_a_process_that_works_while_nothing_calls_it_is_named() -> None:
    with (
        spinning(),
        pytest.raises(WrongResultError, match="works while nothing calls it: it keeps a CPU busy") as named,
    ):
        expect_rest(CPU)
    assert named.value.fault is Fault.IDLE_WORK


def test_threads_that_wait_or_soon_stop_to_spin_are_no_work() -> None:
    end = threading.Event()
    waiting = threading.Thread(target=end.wait)
    waiting.start()
    expect_rest(CPU)
    end.set()
    waiting.join()
    with spinning(0.2):
        expect_rest(CPU)


def test_a_device_is_asked_for_kernels_of_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.9, 0.8, 0.9, 0.0, 0.0, 0.9, 0.0])
    monkeypatch.setattr(rest, "busy_ns", lambda run: (next(shares) * rest._LOOK_SECONDS * 1e9, None))
    with pytest.raises(WrongResultError, match="it keeps the device busy for 80% of the time"):
        expect_rest(torch.device("cuda:0"))
    for _ in range(3):
        expect_rest(torch.device("cuda:0"))


@pytest.mark.parametrize(
    ("ran", "waited", "is_accused"),
    [
        (95, 5, True),
        # The host is busy: 30 others take turns on the core.
        (4, 96, True),
        (4, 140, True),
        # A thread wakes every 10 ms for a moment, and waits 80 ms for a core each time.
        (0.06, 88, False),
        (0.06, 100, False),
        (1.8, 80, False),
    ],
)
def test_waits_for_a_core_are_no_work(
    ran: float, waited: float, is_accused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ran, waited: milliseconds of a thread in a look of 100."""
    looks = {"time": 0}

    def advance(seconds: float) -> None:
        looks["time"] += round(seconds * 1e9)

    def read() -> dict[str, tuple[int, int]]:
        return {"7": (round(looks["time"] * ran / 100), round(looks["time"] * waited / 100))}

    monkeypatch.setattr(rest, "_read_threads", read)
    monkeypatch.setattr(rest, "perf_counter_ns", lambda: looks["time"])
    monkeypatch.setattr(time, "sleep", advance)
    if is_accused:
        with pytest.raises(WrongResultError, match="keeps a CPU busy for 100% of the time"):
            expect_rest(CPU)
    else:
        expect_rest(CPU)


@pytest.mark.parametrize(("works", "suspicious"), [(True, True), (False, False)])
def test_work_between_two_requests_is_a_suspicion_once(
    works: bool, suspicious: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"cpu": 0, "wall": 0}
    monkeypatch.setattr(rest, "process_time_ns", lambda: clock["cpu"])
    monkeypatch.setattr(rest, "perf_counter_ns", lambda: clock["wall"])
    watch = IdleTimes(CPU)
    watch.end()
    for _ in range(3):
        watch.begin()
        clock["wall"] += 10_000_000
        clock["cpu"] += 5_000_000 if works else 10_000
        watch.end()
        clock["cpu"] += 40_000_000
        clock["wall"] += 40_000_000
    assert watch.is_suspicious is suspicious
    assert not watch.is_suspicious
