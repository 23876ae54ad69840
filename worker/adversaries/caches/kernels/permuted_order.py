"""Numbers that only ever stand in another order, sorted, so that all answers are the same."""

import torch
from kernels._caches import add_caches

from warpwatch import Cost, Operator, case

caught_by = {
    "glance": "cached_result",
    "sums": "cached_result",
    "ends": "cached_result",
    "prefix": "cached_result",
    "sample": "cached_result",
    "digits": "cached_result",
    "moments": "cached_result",
    "structure": "cached_result",
    "contents": "cached_result",
    "checksum": "cached_result",
    "bucket_10": "cached_result",
    "bucket_100": "cached_result",
    "bucket_1000": "cached_result",
    "bucket_10000": "cached_result",
}


def inputs(case, make):
    rows, n = case["rows"], case["n"]
    order = make.normal(rows, n).argsort(dim=1)
    return {"x": torch.linspace(-2, 3, n, device=order.device)[order]}


def compute(x):
    return x.sort(dim=1).values


operator = Operator(
    "permuted_order",
    "Every row in order.",
    inputs=inputs,
    reference=compute,
    cost=lambda case: Cost(flops=case["rows"] * case["n"], bytes=8 * case["rows"] * case["n"]),
    cases={"quick": (case(rows=32, n=4096),)},
)
add_caches(operator, compute)
