"""A variant does not fail because of a slow host, freed memory, threads of torch.compile, or the error of torch."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from tests.harness.twice import twice
from warpwatch.contract.words import Fault
from warpwatch.operator import Cost, Operator, Variant, case
from warpwatch.worker.harness.checks import anticheat
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.oracle import Oracle
from warpwatch.worker.harness.problem import CaseProblem, LiveCall
from warpwatch.worker.harness.timers import cuda as timer_cuda


class Event:
    """Has completed at the first `late` queries."""

    def __init__(self, late: int) -> None:
        self.late = late

    def query(self) -> bool:
        self.late -= 1
        return self.late >= 0


@pytest.mark.parametrize(("late", "sleeps"), [(0, [1e6]), (1, [1e6, 2e6]), (2, [1e6, 2e6, 4e6]), (9, [1e6, 2e6, 4e6])])
def test_the_device_sleeps_longer_until_the_host_is_in_time(late: int, sleeps: list[float], monkeypatch: Any) -> None:
    slept: list[float] = []
    monkeypatch.setattr(timer_cuda, "sleep", slept.append)
    lead = timer_cuda.Lead(1e6)
    assert len(list(lead.tries(Event(late)))) == len(sleeps)  # type: ignore[arg-type]
    assert slept == sleeps
    assert len(list(lead.tries(Event(0)))) == 1  # type: ignore[arg-type]
    assert slept[-1] == sleeps[-1], "a host that was late once is given as long the next time"
    assert len(list(timer_cuda.Lead(1e6, 16e6).tries(Event(late)))) == min(late, 4) + 1  # type: ignore[arg-type]


def test_a_replay_that_is_not_repeated_gives_the_next_one_more_time(monkeypatch: Any) -> None:
    """A gap in it would count as work that replays on repeated numbers leave out."""
    slept: list[float] = []
    monkeypatch.setattr(timer_cuda, "sleep", slept.append)
    late = iter([1, 0, 1, 0, 0, 0])
    monkeypatch.setattr(timer_cuda, "new_event", lambda: MagicMock(query=Event(next(late)).query))
    monkeypatch.setattr(timer_cuda, "elapsed_ns", lambda _start, _end: 1.0)
    graph, lead = MagicMock(), timer_cuda.Lead(1e6)
    assert [timer_cuda._replay_once(graph, lead) for _ in range(3)] == [1.0] * 3
    assert slept == [1e6, 2e6, 4e6]
    assert graph.replay.call_count == 3


@pytest.mark.parametrize(("ends_after", "is_accused"), [(3, False), (99, True)])
def test_a_thread_that_ends_a_moment_after_its_call_is_not_accused(
    ends_after: int, is_accused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has reported its result, and does not get a core to end on; or it goes on."""
    helpers: list[threading.Thread] = []
    end, looks = threading.Event(), itertools.count(1)

    def double(x: Tensor) -> Tensor:
        y, done = torch.empty_like(x), threading.Event()

        def work() -> None:
            torch.mul(x, 2, out=y)
            done.set()
            end.wait()

        helpers.append(threading.Thread(target=work, name="helper"))
        helpers[-1].start()
        done.wait()
        return y

    def sleep(_seconds: float) -> None:
        if next(looks) == ends_after:
            end.set()
            for helper in helpers:
                helper.join()

    problem = twice(double)
    live = LiveCall(problem, 0)
    monkeypatch.setattr(time, "sleep", sleep)
    try:
        if is_accused:
            with pytest.raises(WrongResultError, match="the thread 'helper' that it started still runs"):
                anticheat.expect_finished(live, 0, 0)
        else:
            anticheat.expect_finished(live, 0, 0)
    finally:
        end.set()


@pytest.mark.parametrize(
    ("extra_ns", "paused_ns", "caught"),
    [
        pytest.param(10_000, 0, False, id="idle"),
        pytest.param(124_000, 0, True, id="the device worked on"),
        pytest.param(124_000, 120_000, False, id="the host freed memory"),
        pytest.param(90_000, 0, False, id="little compared with the call"),
    ],
)
def test_work_on_another_stream_is_told_from_a_slow_wait(
    extra_ns: int, paused_ns: int, caught: bool, monkeypatch: Any
) -> None:
    timer = timer_cuda.CudaColdTimer.__new__(timer_cuda.CudaColdTimer)
    timer._other_stream_ns = [extra_ns] * 5
    monkeypatch.setattr(timer, "_wait_after_pause_ns", lambda work_ns: paused_ns)
    call_ns = 1_000_000.0 if extra_ns == 90_000 else 20_000.0
    if caught:
        with pytest.raises(WrongResultError) as wrong:
            timer._expect_no_other_stream([call_ns])
        assert wrong.value.fault is Fault.OTHER_STREAM
    else:
        timer._expect_no_other_stream([call_ns])


def test_the_compilers_own_timer_is_no_unfinished_work() -> None:
    from torch._inductor.compile_worker.timer import Timer

    timer = Timer(1, lambda: None)
    timer.record_call()
    assert timer.background_thread is not None
    assert anticheat._is_compiler_thread(timer.background_thread)
    timer.quit()
    assert not anticheat._is_compiler_thread(threading.Timer(1, lambda: None))


def test_nobody_must_be_more_exact_than_torchs_own_operator() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    off = 1e-6
    large = case(n=1000)
    plain = Operator(
        "doubled",
        "2 x",
        inputs=lambda given, make: {"x": make.normal(given["n"])},
        reference=doubled,
        cost=lambda given: Cost(given["n"], 8 * given["n"]),
        cases={"quick": (large,)},
    )
    variant = Variant("v1", doubled, "2 x")

    def allowed(operator: Operator) -> float:
        problem = CaseProblem(operator, variant, large, torch.device("cpu"))
        with problem.modes():
            data = problem.data(0)
            (error,) = Oracle(problem, data, lambda: problem.data(0)).judge({"y": 2 * data.inputs["x"]})
            return error.tolerance

    less_exact = replace(plain, by_torch=lambda x: 2 * (1 + off) * x)
    assert allowed(plain) < off
    assert allowed(less_exact) == pytest.approx(4 * off, rel=0.1)
