"""What a wrong result is called, by the memory that it lies in."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from warpwatch.contract.words import Fault
from warpwatch.operator import Cost, Operator, case
from warpwatch.worker.harness.guards.diagnosis import Diagnosis, decoys_of, explain
from warpwatch.worker.harness.problem import CaseProblem, fill_with_poison, is_poison

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


class Kept:
    """What variants keep between calls."""

    calls = 0
    answer: Tensor | None = None
    of_thread = threading.local()


@operator.variant("race", idea="is wrong in every other call, whoever makes it")
def race(a: Tensor) -> Tensor:
    Kept.calls += 1
    return 2 * a + Kept.calls % 2


@operator.variant("detects", idea="is wrong in the main thread, where timers are")
def detects(a: Tensor) -> Tensor:
    return 2 * a + (threading.current_thread() is threading.main_thread())


@operator.variant("accumulates", idea="adds to what the thread has of its last call")
def accumulates(a: Tensor) -> Tensor:
    Kept.of_thread.sum = getattr(Kept.of_thread, "sum", 0) + 2 * a
    return Kept.of_thread.sum.clone()


@operator.variant("overflows", idea="returns NaN, which it has computed")
def overflows(a: Tensor) -> Tensor:
    return a * math.inf * 0


@operator.variant("keeps", idea="returns its first answer")
def keeps(a: Tensor) -> Tensor:
    if Kept.answer is None:
        Kept.answer = 2 * a
    return Kept.answer.clone()


@operator.variant("late", idea="returns the answer of the call before now and then")
def late(a: Tensor) -> Tensor:
    Kept.calls += 1
    before, Kept.answer = Kept.answer, 2 * a
    return Kept.answer.clone() if before is None or Kept.calls % 5 else before


def diagnose(name: str, value: Tensor, *earlier: int) -> Diagnosis:
    """The diagnosis of `value` as the result for the inputs of seed 1. earlier: seeds of inputs before these."""
    problem = CaseProblem(operator, operator.variants[name], CASE, torch.device("cpu"))
    before = [problem.data(seed) for seed in earlier]
    return explain(problem, lambda: problem.data(1), {"y": value}, before, decoys_of(problem))


def doubled(seed: int) -> Tensor:
    problem = CaseProblem(operator, operator.variants["constant"], CASE, torch.device("cpu"))
    result: Tensor = 2 * problem.data(seed).inputs["a"]
    return result


def test_what_detects_the_timer_is_told_from_a_race_and_from_state_of_a_thread() -> None:
    off = doubled(1) + 1
    assert diagnose("detects", off).fault is Fault.DETECTED_TIMER
    unsteady = diagnose("race", off)
    assert unsteady.fault is Fault.WRONG_VALUES
    assert "calls on the same inputs are wrong, so it is wrong now and then" in unsteady.text
    diagnose("accumulates", off)
    assert diagnose("accumulates", off).fault is Fault.WRONG_VALUES


def test_a_cache_is_told_from_a_late_answer_and_from_a_common_one() -> None:
    problem = CaseProblem(operator, operator.variants["keeps"], CASE, torch.device("cpu"))
    problem.run(problem.data(2))
    assert diagnose("keeps", doubled(2), 3, 2).fault is Fault.CACHED_RESULT
    assert diagnose("late", doubled(2), 3, 2).fault is Fault.WRONG_VALUES


def test_computed_nan_is_told_from_poison() -> None:
    assert diagnose("overflows", doubled(1) * math.inf * 0).fault is Fault.WRONG_VALUES
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        poison = torch.empty(CASE["n"], dtype=dtype)
        fill_with_poison(poison)
        assert poison.isnan().all()
        assert is_poison(poison)
        assert not is_poison(torch.full_like(poison, math.nan))
    fill_with_poison(poison := torch.empty(CASE["n"]))
    assert diagnose("unwritten", poison).fault is Fault.UNWRITTEN_RESULT


@pytest.mark.parametrize(("name", "fault"), [("unwritten", Fault.UNWRITTEN_RESULT), ("constant", Fault.WRONG_VALUES)])
def test_memory_that_was_never_written_is_named_whatever_lay_in_it(name: str, fault: Fault) -> None:
    problem = CaseProblem(operator, operator.variants[name], CASE, torch.device("cpu"))
    results: dict[str, Any] = {"y": torch.full((CASE["n"],), 78.0)}
    diagnosis = explain(problem, lambda: problem.data(1), results, [], decoys_of(problem))
    assert diagnosis.fault is fault
