"""Right code whose calls differ: some take far longer, some grow a workspace, and some leave threads behind."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import perf_counter

import torch

from warpwatch import Cost, Operator, both_directions, case

CALLS = count(1)
POOL = []
SLOW_SECONDS = 0.001
WORKSPACES = []

operator = Operator(
    "unsteady",
    "A sum of every row.",
    inputs=lambda case, make: {"x": make.normal(case["rows"], case["n"])},
    reference=lambda x: x.sum(-1),
    cost=lambda case: Cost(case["rows"] * case["n"], case.element_bytes * case["rows"] * case["n"]),
    cases={"quick": both_directions(case(rows=32, n=64), case("f64", rows=8, n=64))},
    gradients=("x",),
    depth=lambda case: case["n"],
)


@operator.variant("seldom_slow", idea="every fifth call takes fifty times as long")
def seldom_slow(x):
    end = perf_counter() + (SLOW_SECONDS if next(CALLS) % 5 == 0 else 0)
    while perf_counter() < end:
        pass
    return x.sum(-1)


@operator.variant("pooled", idea="has its rows summed by threads that wait for the next call", devices=("cpu",))
def pooled(x):
    if not POOL:
        POOL.append(ThreadPoolExecutor(2))
    halves = POOL[0].map(lambda part: part.sum(-1), x.chunk(2))
    return torch.cat(list(halves))


@operator.variant("grows", idea="makes its workspace larger now and then")
def grows(x):
    if next(CALLS) % 50 == 0:
        WORKSPACES.append(torch.empty_like(x))
    return x.sum(-1)
