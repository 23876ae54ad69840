"""A launch on CUDA's default stream is told from work that nobody waits for, and judged where nothing races."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from tests.harness.twice import twice
from warpwatch.contract.messages import CheckReply
from warpwatch.contract.words import Fault, Status
from warpwatch.worker.harness.checks import default_stream
from warpwatch.worker.harness.checks.default_stream import judge_in_order, prepare_in_order, put_in_order
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.harness.timers import graphs

LEGACY = "CUDA error: operation would make the legacy stream depend on a capturing blocking stream"
EARLIER = "CUDA error: operation failed due to a previous error during capture"
READS_BACK = "CUDA error: operation not permitted when stream is capturing"


@pytest.mark.parametrize(
    ("ordinary", "ordered", "control", "expected"),
    [
        pytest.param(None, None, None, False, id="is captured"),
        pytest.param(None, LEGACY, None, True, id="CUDA says so"),
        pytest.param(None, EARLIER, None, True, id="native code that looks at no error"),
        pytest.param(READS_BACK, READS_BACK, None, False, id="is captured nowhere"),
        pytest.param(READS_BACK, LEGACY, None, True, id="reads back after it launched"),
        pytest.param(None, LEGACY, LEGACY, False, id="a driver that captures nothing so"),
    ],
)
def test_a_call_is_told_by_captures_on_two_kinds_of_streams(
    ordinary: str | None, ordered: str | None, control: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = ["ordinary"]

    def use(stream: str) -> Any:
        current.append(stream)
        context = MagicMock()
        context.__exit__.side_effect = lambda *_: current.pop() and None
        return context

    def call() -> None: ...

    def refuse(captured: Callable[[], Any]) -> str | None:
        if captured is not call:
            return control
        return ordered if current[-1] == "ordered" else ordinary

    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(graphs, "ordered_stream", lambda device: "ordered")
    monkeypatch.setattr(graphs, "_refusal", refuse)
    graphs._captures_in_order.cache_clear()
    assert graphs.launches_on_default_stream(call, torch.device("cuda:0")) is expected
    graphs._captures_in_order.cache_clear()


def judged(problem: CaseProblem, *, is_there: bool, in_order: CheckReply | WrongResultError) -> CheckReply:
    """The reply about a variant that is wrong where its stream waits for no other. is_there: whether it launches on the
    default stream; in_order: what is found where the stream waits for that."""

    def judge() -> CheckReply:
        if not problem.is_in_order:
            raise WrongResultError("it does not wait for the current stream", Fault.OTHER_STREAM)
        if isinstance(in_order, WrongResultError):
            raise in_order
        return in_order

    def put(given: CaseProblem, _seed: int) -> bool:
        given.is_in_order = is_there
        return is_there

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default_stream, "put_in_order", put)
        return judge_in_order(problem, 0, judge)


def test_only_a_launch_on_the_default_stream_is_judged_once_more() -> None:
    assert judged(twice(torch.neg), is_there=True, in_order=CheckReply(Status.OK)).status is Status.OK
    with pytest.raises(WrongResultError) as accused:
        judged(twice(torch.neg), is_there=False, in_order=CheckReply(Status.OK))
    assert accused.value.fault is Fault.OTHER_STREAM


def test_work_that_is_unfinished_behind_the_default_stream_is_still_a_fault() -> None:
    late = WrongResultError("y still changes after the call has returned", Fault.UNFINISHED, "y")
    with pytest.raises(WrongResultError) as accused:
        judged(twice(torch.neg), is_there=True, in_order=late)
    assert accused.value.fault is Fault.UNFINISHED


@pytest.mark.parametrize(("is_there", "made"), [(True, 2), (False, 1)])
def test_what_no_graph_can_hold_is_prepared_once_more_in_order(
    is_there: bool, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = twice(torch.neg)
    orders: list[bool] = []

    def prepare() -> Any:
        orders.append(problem.is_in_order)
        return MagicMock(metric="kernel")

    def put(given: CaseProblem, _seed: int) -> bool:
        given.is_in_order = is_there
        return is_there

    monkeypatch.setattr(default_stream, "put_in_order", put)
    assert prepare_in_order(problem, 0, prepare).metric == "kernel"
    assert orders == [False, True][:made]


def test_a_variant_that_raises_while_it_is_looked_at_stays_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = twice(torch.neg)
    monkeypatch.setattr(problem, "device", torch.device("cuda:0"))
    monkeypatch.setattr(problem, "modes", nullcontext)
    monkeypatch.setattr(problem, "data", lambda _seed: twice(torch.neg).data(0))
    monkeypatch.setattr(default_stream, "launches_on_default_stream", lambda *_: 1 / 0)
    assert not put_in_order(problem, 0)
    monkeypatch.setattr(default_stream, "launches_on_default_stream", lambda *_: True)
    assert put_in_order(problem, 0)
    assert not put_in_order(problem, 0), "it is in order already, so nothing is judged a third time"
