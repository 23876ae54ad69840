"""Work with a known slow-down: `slower` does what `plain` does and then waits for a chosen part of its time."""

from __future__ import annotations

import os
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, Maker, Operator, case

EXTRA_NS = int(os.environ.get("CALIBRATED_EXTRA_NS", "0"))
CYCLES_PER_NS = float(os.environ.get("CALIBRATED_CYCLES_PER_NS", "1.9"))


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    return {"a": make.normal(case["n"], case["n"])}


def square(a: Tensor) -> Tensor:
    return a * a


operator = Operator(
    "calibrated",
    "a * a, and a wait.",
    inputs=inputs,
    reference=square,
    cost=lambda case: Cost(case["n"] ** 2, 2 * case["n"] ** 2 * case.element_bytes),
    cases={"quick": (case("f32", n=256), case("f32", n=1024), case("f32", n=2048)), "full": (case("f32", n=6144),)},
)


@operator.variant("plain", idea="a * a, and a wait of no length, which on a GPU is a launch of its own")
def plain(a: Tensor) -> Tensor:
    return _and_wait(square(a), 0)


@operator.variant("slower", idea="a * a, and a wait")
def slower(a: Tensor) -> Tensor:
    return _and_wait(square(a), EXTRA_NS)


def _and_wait(y: Tensor, nanoseconds: int) -> Tensor:
    if y.is_cuda:
        torch.cuda._sleep(int(nanoseconds * CYCLES_PER_NS))  # type: ignore[no-untyped-call]
    else:
        end = perf_counter_ns() + nanoseconds
        while perf_counter_ns() < end:
            pass
    return y
