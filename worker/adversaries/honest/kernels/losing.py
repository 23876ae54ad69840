"""Maxima of a definition in which NaN loses: what wins or loses beside it is no fault."""

import math

import torch

from warpwatch import Cost, Operator, case


def compares(x):
    best = torch.full_like(x[:, 0], -math.inf)
    for column in x.unbind(1):
        best = torch.where(column > best, column, best)
    return best


operator = Operator(
    "losing",
    "The maximum of every row; NaN loses.",
    inputs=lambda case, make: {"x": make.normal(case["rows"], case["n"])},
    reference=compares,
    cost=lambda case: Cost(case["rows"] * case["n"], case.element_bytes * case["rows"] * case["n"]),
    cases={"quick": (case(rows=64, n=48), case(rows=3, n=9), case("f64", rows=7, n=31), case("bf16", rows=5, n=20))},
)
operator.variant("loses", idea="compares")(compares)
operator.variant("spreads", idea="torch's maximum, in which NaN wins")(lambda x: x.amax(1))
operator.variant("replaces", idea="replaces NaN by the smallest number first")(
    lambda x: torch.where(x.isnan(), -math.inf, x).amax(1)
)
