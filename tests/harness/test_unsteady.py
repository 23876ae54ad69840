"""A variant that is wrong or slow now and then is said to be that, and never to keep results or to detect timers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import perf_counter

import pytest
import torch
from torch import Tensor

from tests.harness.twice import twice
from warpwatch.contract.words import Fault, Status
from warpwatch.operator import Cost, Operator, case
from warpwatch.worker.harness.checks import anticheat
from warpwatch.worker.harness.checks.check import check
from warpwatch.worker.harness.checks.probes import ProbeHistory
from warpwatch.worker.harness.checks.recomputation import expect_recomputed
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.problem import CaseProblem, LiveCall
from warpwatch.worker.harness.timers.cpu import CpuHotTimer

FOUR = case(n=4)
Function = Callable[[Tensor], Tensor]


def place(function: Function) -> CaseProblem:
    """`function` as the variant of an operator with four answers, which many inputs share."""
    operator = Operator(
        "place",
        "The place of the largest number.",
        inputs=lambda given, make: {"x": make.normal(given["n"])},
        reference=lambda x: x.argmax(-1),
        cost=lambda given: Cost(1, 1),
        cases={"quick": (FOUR,)},
    )
    operator.variant("tested", idea="as the test says")(function)
    return CaseProblem(operator, operator.variants["tested"], FOUR, torch.device("cpu"))


def spoils(number: int, *, always: bool = False) -> Function:
    """Twice x, but zeros in every call of that number, or in all calls from it on."""
    calls = count(1)

    def double(x: Tensor) -> Tensor:
        call = next(calls)
        return torch.zeros_like(x) if call % number == 0 or (always and call > number) else 2 * x

    return double


def spins(seconds: float) -> None:
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


def leaves_early() -> Function:
    """Twice x, but in every other call an answer of its own, which takes no time."""
    calls = count(1)

    def double(x: Tensor) -> Tensor:
        if next(calls) % 2 == 0:
            return x.clone()
        spins(0.001)
        return 2 * x

    return double


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (twice(spoils(2)), "wrong now and then"),
        (twice(spoils(12, always=True)), "off by"),
        (twice(leaves_early()), "wrong now and then"),
        (place(lambda x: (x.argmax(-1) + 1) % 4), "off by"),
    ],
    ids=["now and then", "from a call on", "early", "common answers"],
)
def test_a_wrong_answer_is_no_kept_one(problem: CaseProblem, text: str) -> None:
    with problem.modes(), pytest.raises(WrongResultError, match=text) as wrong:
        expect_recomputed(LiveCall(problem, 0), 0)
    assert wrong.value.fault is Fault.WRONG_VALUES


def test_a_repeated_answer_that_many_inputs_have_is_no_kept_one() -> None:
    # That is right for the first inputs of seed 1, and not for the second.
    problem = place(lambda x: torch.tensor(0))
    with problem.modes():
        reply = check(problem, 1, ProbeHistory(), lambda *_: None)
    assert (reply.status, reply.fault) == (Status.WRONG, Fault.WRONG_VALUES)


def test_a_call_that_is_slow_now_and_then_does_not_wait_for_a_timer() -> None:
    calls = count(1)

    def double(x: Tensor) -> Tensor:
        spins(0.001 if next(calls) % 5 == 0 else 0)
        return 2 * x

    problem = twice(double)
    with problem.modes():
        CpuHotTimer(problem, 0, 1_000_000).verify()


def test_the_idle_threads_of_a_pool_are_no_unfinished_work() -> None:
    pools: list[ThreadPoolExecutor] = []

    def double(x: Tensor) -> Tensor:
        # Each has a thread that waits for more work when the call returns.
        pools.append(ThreadPoolExecutor(1))
        return pools[-1].submit(torch.mul, x, 2).result()

    problem = twice(double)
    with problem.modes():
        anticheat.expect_finished(LiveCall(problem, 0), 0, 0)
    for pool in pools:
        pool.shutdown()
