"""torch_scatter.scatter with sums, on the CPU."""

import torch
import torch_scatter

from warpwatch import Cost, Operator, both_directions, case


def inputs(case, make):
    index = make.integers(0, case["groups"], case["rows"]).long()
    return {"x": make.normal(case["rows"], case["k"]), "index": index, "groups": case["groups"]}


def reference(x, index, groups):
    return torch.zeros(groups, x.shape[1], dtype=x.dtype, device=x.device).index_add(0, index, x)


def cost(case):
    n = case["rows"] * case["k"]
    return Cost(flops=n, bytes=4 * n + 8 * case["rows"])


operator = Operator(
    "scatter",
    "Sums the rows of a matrix by group.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    depth=lambda case: case["rows"],
    gradients=("x",),
    cases={"quick": both_directions(case(rows=1024, k=32, groups=64), case(rows=65536, k=32, groups=64))},
)


@operator.variant("torch", idea="index_add", devices=("cpu", "cuda"))
def index_add(x, index, groups):
    return reference(x, index, groups)


@operator.variant("scatter", idea="the package's scatter", devices=("cpu",))
def scatter(x, index, groups):
    return torch_scatter.scatter(x, index, dim=0, dim_size=groups, reduce="sum")
