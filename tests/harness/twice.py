"""The operator 2 x, for tests that bring its variant and need no child."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from warpwatch import Cost, Operator, case
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.harness.turns import ChildTurns

SMALL = case(n=100)


def twice(function: Callable[[Tensor], Tensor], turns: ChildTurns | None = None, device: str = "cpu") -> CaseProblem:
    """`function` as the variant of an operator that doubles x."""
    operator = Operator(
        "twice",
        "Twice.",
        inputs=lambda given, make: {"x": make.normal(given["n"])},
        reference=lambda x: 2 * x,
        cost=lambda given: Cost(1, 1),
        cases={"quick": (SMALL,)},
    )
    operator.variant("tested", idea="as the test says")(function)
    return CaseProblem(operator, operator.variants["tested"], SMALL, torch.device(device), turns)
