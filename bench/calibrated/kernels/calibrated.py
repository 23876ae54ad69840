"""Work with a known slow-down: `slower` does what `plain` does, and waits for a chosen part of its time.

The work is of five kinds: what bounds it is memory in order, memory across, arithmetic, a reduction, or launches.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, Maker, Operator, case

EXTRA_NS = int(os.environ.get("CALIBRATED_EXTRA_NS", "0"))
ON_HOST = os.environ.get("CALIBRATED_ON_HOST") == "1"
"""Whether the host waits, before it launches anything, instead of the device."""
CYCLES_PER_NS = float(os.environ.get("CALIBRATED_CYCLES_PER_NS", "1.9"))


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    return {"a": make.normal(case["n"], case["n"]), "work": case["work"]}


def chain(a: Tensor) -> Tensor:
    for _ in range(16):
        a = a * 0.5
    return a


WORK: dict[str, Callable[[Tensor], Tensor]] = {
    "square": lambda a: a * a,
    "transpose": lambda a: a.mT.contiguous(),
    "product": lambda a: a @ a,
    "softmax": lambda a: torch.softmax(a, -1),
    "chain": chain,
}


def cost(case: Case) -> Cost:
    n = case["n"]
    return Cost(2 * n**3 if case["work"] == "product" else n**2, 2 * n**2 * case.element_bytes)


operator = Operator(
    "calibrated",
    "Work, and a wait.",
    inputs=inputs,
    reference=lambda a, work: WORK[work](a),
    cost=cost,
    cases={
        "quick": (
            *(case("f32", work="square", n=n) for n in (256, 1024, 2048, 6144)),
            *(case("f32", work=work, n=2048) for work in ("transpose", "softmax", "chain")),
            case("bf16", work="product", n=2048),
        )
    },
    depth=lambda case: case["n"] if case["work"] == "product" else 1,
)


@operator.variant("plain", idea="the work, and a wait of no length, which on a GPU is a launch of its own")
def plain(a: Tensor, work: str) -> Tensor:
    return _wait_beside(a, work, 0)


@operator.variant("slower", idea="the work, and a wait")
def slower(a: Tensor, work: str) -> Tensor:
    return _wait_beside(a, work, EXTRA_NS)


def _wait_beside(a: Tensor, work: str, nanoseconds: int) -> Tensor:
    on_device = a.is_cuda and not ON_HOST
    if not on_device:
        end = perf_counter_ns() + nanoseconds
        while perf_counter_ns() < end:
            pass
    y = WORK[work](a)
    if on_device:
        torch.cuda._sleep(int(nanoseconds * CYCLES_PER_NS))  # type: ignore[no-untyped-call]
    return y
