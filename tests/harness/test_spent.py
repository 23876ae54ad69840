"""The first call of a variant, in which compilers may run for seconds, counts as warm-up, whatever is asked for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from warpwatch.contract.messages import Request
from warpwatch.operator import Cost, Operator, case
from warpwatch.worker.harness import spent
from warpwatch.worker.harness.bench import bench
from warpwatch.worker.harness.check import check
from warpwatch.worker.harness.integrity import TamperGuard
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.harness.profiling import profile_problem

COMPILING_SECONDS = 1.0
SMALL = case(n=64)


def compiled_late() -> CaseProblem:
    """A problem whose variant compiles in its first call, as far as time shows."""
    compiled: list[float] = []

    def double(x: Tensor) -> Tensor:
        if not compiled:
            time.sleep(COMPILING_SECONDS)
            compiled.append(COMPILING_SECONDS)
        return 2 * x

    operator = Operator(
        "twice",
        "Twice.",
        inputs=lambda given, make: {"x": make.normal(given["n"])},
        reference=lambda x: 2 * x,
        cost=lambda given: Cost(1, 1),
        cases={"quick": (SMALL,)},
    )
    operator.variant("compiled", idea="doubles")(double)
    return CaseProblem(operator, operator.variants["compiled"], SMALL, torch.device("cpu"))


@pytest.mark.parametrize("verb", ["check", "bench", "profile"])
def test_compilers_of_a_first_call_are_warm_up(verb: str, tmp_path: Path) -> None:
    problem = compiled_late()
    spent.STOPWATCH.take()
    with spent.STOPWATCH.measure(spent.ACTIVITIES[verb]):
        if verb == "check":
            check(problem, 0, set(), lambda *_: None)
        elif verb == "bench":
            bench(problem, 0, 10_000_000, TamperGuard(), lambda *_: None)
        else:
            profile_problem(problem, Request(0, verb), tmp_path / "trace.json.gz")
    times = spent.STOPWATCH.take()
    assert times.warm_up >= COMPILING_SECONDS
    assert times.record > 0 or verb != "profile"
