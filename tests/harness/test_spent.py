"""The first call of a variant, in which compilers may run for seconds, counts as warm-up, whatever is asked for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from torch import Tensor

from tests.harness.twice import twice
from warpwatch.contract.messages import Request
from warpwatch.worker.harness.bench import bench
from warpwatch.worker.harness.checks.check import check
from warpwatch.worker.harness.checks.probes import ProbeHistory
from warpwatch.worker.harness.child.serve import ACTIVITIES
from warpwatch.worker.harness.guards.integrity import TamperGuard
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.harness.profile.profiling import profile_problem
from warpwatch.worker.harness.turns import STOPWATCH

COMPILING_SECONDS = 1.0


def compiled_late() -> CaseProblem:
    """A problem whose variant compiles in its first call, as far as time shows."""
    pauses = iter([COMPILING_SECONDS])

    def double(x: Tensor) -> Tensor:
        time.sleep(next(pauses, 0))
        return 2 * x

    return twice(double)


@pytest.mark.parametrize("verb", ["check", "bench", "profile"])
def test_compilers_of_a_first_call_are_warm_up(verb: str, tmp_path: Path) -> None:
    problem = compiled_late()
    STOPWATCH.take()
    with STOPWATCH.measure(ACTIVITIES[verb]):
        if verb == "check":
            check(problem, 0, ProbeHistory(), lambda *_: None)
        elif verb == "bench":
            bench(problem, 0, 10_000_000, TamperGuard(), lambda *_: None)
        else:
            profile_problem(problem, Request(0, verb), tmp_path / "trace.json.gz", TamperGuard())
    times = STOPWATCH.take()
    assert times.warm_up >= COMPILING_SECONDS
    assert times.record > 0 or verb != "profile"
