"""Work with a known slow-down for CPUs: `slower` does what `plain` does and a share of its operations once more.

Waiting would not do here: the other threads fall asleep meanwhile, and waking them costs more than the wait. Nor would
a kernel that memory bounds: on a shared machine others take part of its bandwidth.
"""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor

from warpwatch.operator import Case, Cost, Maker, Operator, case

EXTRA_SHARE = float(os.environ.get("CALIBRATED_EXTRA_SHARE", "0"))


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    return {"a": make.normal(case["n"], case["n"])}


def product(a: Tensor) -> Tensor:
    return a @ a


operator = Operator(
    "product",
    "a @ a, and a share of its operations again.",
    inputs=inputs,
    reference=product,
    cost=lambda case: Cost(2 * case["n"] ** 3, 2 * case["n"] ** 2 * case.element_bytes),
    cases={"quick": (case("f32", n=256), case("f32", n=512))},
    depth=lambda case: case["n"],
)


@operator.variant("plain", idea="a @ a, and nothing of it again")
def plain(a: Tensor) -> Tensor:
    return _and_again(a, 0.0)


@operator.variant("slower", idea="a @ a, and a smaller product of a corner of it")
def slower(a: Tensor) -> Tensor:
    return _and_again(a, EXTRA_SHARE)


def _and_again(a: Tensor, share: float) -> Tensor:
    y = product(a)
    size = round(len(a) * share ** (1 / 3))
    corner = a[:size, :size]
    _ = corner @ corner
    return y
