"""What a wrong result is called, by the memory that it lies in."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from warpwatch.contract.words import Fault
from warpwatch.operator import Cost, Operator, case
from warpwatch.worker.harness.guards.diagnosis import decoys_of, explain
from warpwatch.worker.harness.problem import CaseProblem

CASE = case(n=4096)
operator = Operator(
    "doubled",
    "Twice a vector.",
    inputs=lambda case, make: {"a": make.normal(case["n"])},
    reference=lambda a: 2 * a,
    cost=lambda case: Cost(case["n"], 8 * case["n"]),
    cases={"quick": (CASE,)},
)


@operator.variant("unwritten", idea="returns memory that it never wrote")
def unwritten(a: Tensor) -> Tensor:
    return torch.empty_like(a)


@operator.variant("constant", idea="returns a constant")
def constant(a: Tensor) -> Tensor:
    return torch.full_like(a, 78.0)


class Race:
    """Wrong in every third call."""

    calls = 0


@operator.variant("race", idea="is wrong now and then, whoever calls it")
def race(a: Tensor) -> Tensor:
    Race.calls += 1
    return 2 * a + (Race.calls % 3 == 0)


@operator.variant("detects", idea="is wrong in the main thread, where timers are")
def detects(a: Tensor) -> Tensor:
    return 2 * a + (threading.current_thread() is threading.main_thread())


@pytest.mark.parametrize(("name", "fault"), [("race", Fault.WRONG_VALUES), ("detects", Fault.DETECTED_TIMER)])
def test_a_race_is_not_said_to_detect_the_timer(name: str, fault: Fault) -> None:
    problem = CaseProblem(operator, operator.variants[name], CASE, torch.device("cpu"))
    results: dict[str, Any] = {"y": 2 * problem.data(1).inputs["a"] + 1}
    assert explain(problem, lambda: problem.data(1), results, [], decoys_of(problem)).fault is fault


@pytest.mark.parametrize(("name", "fault"), [("unwritten", Fault.UNWRITTEN_RESULT), ("constant", Fault.WRONG_VALUES)])
def test_memory_that_was_never_written_is_named_whatever_lay_in_it(name: str, fault: Fault) -> None:
    problem = CaseProblem(operator, operator.variants[name], CASE, torch.device("cpu"))
    results: dict[str, Any] = {"y": torch.full((CASE["n"],), 78.0)}
    diagnosis = explain(problem, lambda: problem.data(1), results, [], decoys_of(problem))
    assert diagnosis.fault is fault
