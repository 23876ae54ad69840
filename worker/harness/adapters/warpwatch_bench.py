"""Warpwatch itself: a bench with every check of honesty. The time is that of the first metric of the device."""

from __future__ import annotations

from typing import Any

from warpwatch.operator import Cost, Operator, Variant, case

from ..bench import bench
from ..failures import WrongResultError
from ..guards.integrity import TamperGuard
from ..problem import CaseProblem, SeededMaker
from . import Function, Inputs
from .host_cuda import device_of

_BUDGET_NS = 40_000_000
_GUARD = TamperGuard()
"""Made before the candidate is loaded."""
_seconds: list[float] = []


def check(reference: Function, candidate: Function, inputs: Inputs) -> bool:
    tensors = inputs(0)
    chosen = case(depth=tensors[0].shape[-1])

    def draw(_case: Any, make: Any) -> dict[str, Any]:
        assert isinstance(make, SeededMaker)
        return {f"x{index}": tensor for index, tensor in enumerate(inputs(make.seed))}

    operator = Operator(
        "exam",
        "A problem of the exam.",
        inputs=draw,
        reference=lambda **named: reference(*named.values()),
        cost=lambda _case: Cost(1, 1),
        cases={"quick": (chosen,)},
        depth=lambda given: given["depth"],
    )
    variant = Variant("candidate", lambda **named: candidate(*named.values()), "the candidate")
    try:
        reply = bench(
            CaseProblem(operator, variant, chosen, device_of(tensors)), 0, _BUDGET_NS, _GUARD, lambda *_step: None
        )
    except WrongResultError:
        return False
    _seconds[:] = [reply.measurements[0].median_ns / 1e9]
    return True


def time(_candidate: Function, _inputs: Inputs) -> float:
    return _seconds[0]
