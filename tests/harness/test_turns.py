"""What a child asks its parent for while other children of its job use the device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.harness.twice import twice
from warpwatch.contract.messages import Request
from warpwatch.contract.spec import ProfilePlan
from warpwatch.contract.words import LaneUse, Status
from warpwatch.worker.harness.bench import bench
from warpwatch.worker.harness.guards.integrity import TamperGuard
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.harness.profile import profiling
from warpwatch.worker.harness.profile.events import Recording, read_recording
from warpwatch.worker.harness.timers.warm_up import call_first
from warpwatch.worker.harness.turns import ChildTurns

NONE, HOST, DEVICE, QUIET = LaneUse.NONE, LaneUse.HOST, LaneUse.DEVICE, LaneUse.QUIET


def double(x: Tensor) -> Tensor:
    return 2 * x


def tune(x: Tensor) -> Tensor:
    for _ in range(2):
        # A build of torch without CUDA refuses.
        with suppress(RuntimeError):
            torch.cuda.Event(enable_timing=True)
    return 2 * x


def notice_time(x: Tensor) -> Tensor:
    with suppress(RuntimeError):
        torch.cuda.Event()
    return 2 * x


def problem_of(asked: list[LaneUse], function: Callable[[Tensor], Tensor] = double, lanes: int = 2) -> CaseProblem:
    turns = ChildTurns(asked.append)
    turns.start(lanes)
    return twice(function, turns=turns)


def test_uses_nest_and_what_is_quiet_stays_so() -> None:
    asked: list[LaneUse] = []
    turns = ChildTurns(asked.append)
    turns.start(2)
    with turns.use(DEVICE), turns.use(DEVICE), turns.use(QUIET), turns.use(HOST), turns.use(DEVICE):
        turns.pause()
    assert asked == [DEVICE, QUIET, DEVICE, NONE]


def test_one_lane_asks_for_nothing() -> None:
    asked: list[LaneUse] = []
    problem = problem_of(asked, lanes=1)
    assert bench(problem, 0, 10_000_000, TamperGuard(), lambda *_step: None).status is Status.OK
    assert asked == []


def test_a_bench_has_the_device_after_its_first_call() -> None:
    asked: list[LaneUse] = []
    assert bench(problem_of(asked), 0, 10_000_000, TamperGuard(), lambda *_step: None).status is Status.OK
    assert asked == [DEVICE, NONE, DEVICE, NONE, DEVICE, NONE], "the first call leaves the device to others"


def test_a_profile_has_a_quiet_device_while_it_records_and_none_while_it_reads_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[LaneUse] = []

    def read(path: Path) -> Recording:
        asked.append(LaneUse.HOST)
        return read_recording(path)

    monkeypatch.setattr(profiling, "read_recording", read)
    request = Request(0, "profile", profile=ProfilePlan(counters=True))
    reply = profiling.profile_problem(problem_of(asked), request, tmp_path / "trace.json.gz", TamperGuard())
    assert reply.status is Status.OK
    assert asked == [DEVICE, NONE, DEVICE, NONE, QUIET, NONE, HOST, DEVICE, NONE], "counters have the device, too"


@pytest.mark.parametrize(
    ("function", "uses"),
    [(double, [DEVICE, NONE, DEVICE, NONE]), (tune, [DEVICE, NONE, DEVICE, NONE, DEVICE, NONE])],
)
def test_a_first_call_that_times_something_has_the_device(
    function: Callable[[Tensor], Tensor], uses: list[LaneUse]
) -> None:
    asked: list[LaneUse] = []
    make = vars(torch.cuda.Event)["__new__"]
    call_first(problem_of(asked, function), 0, TamperGuard())
    assert asked == uses
    assert vars(torch.cuda.Event)["__new__"] is make


def test_an_event_without_a_time_needs_no_device() -> None:
    asked: list[LaneUse] = []
    call_first(problem_of(asked, notice_time), 0, TamperGuard())
    assert asked == [DEVICE, NONE, DEVICE, NONE]


def test_what_prepares_has_the_device_in_its_first_call_and_a_quiet_host_when_that_is_timed() -> None:
    asked: list[LaneUse] = []
    problem = problem_of(asked)
    object.__setattr__(problem.variant, "prepare", lambda x: {})
    call_first(problem, 0, TamperGuard())
    assert asked == [DEVICE, NONE]
    asked.clear()
    assert bench(problem, 0, 10_000_000, TamperGuard(), lambda *_step: None).status is Status.OK
    assert asked == [DEVICE, NONE, DEVICE, QUIET, DEVICE, QUIET, DEVICE, NONE]
