"""The largest of numbers that only ever stand in another order, so that their sum stays."""

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


K = 16


def inputs(case, make):
    rows, n = case["rows"], case["n"]
    order = make.normal(rows, n).argsort(dim=1)
    numbers = torch.linspace(-2, 3, n, dtype=torch.float64, device=order.device)
    return {"x": numbers[order]}


def compute(x):
    values, places = x.sort(dim=1, descending=True)
    return values[:, :K].contiguous(), places[:, :K].contiguous()


operator = Operator(
    "permuted_topk",
    "The largest numbers of every row, and their places.",
    inputs=inputs,
    reference=compute,
    cost=lambda case: Cost(flops=case["rows"] * case["n"], bytes=8 * case["rows"] * case["n"]),
    cases={"quick": (case("f64", rows=32, n=4096),)},
)
add_caches(operator, compute)
