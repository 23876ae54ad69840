"""extension_cpp.ops.myadd_out: a + b into a tensor of the caller."""

import extension_cpp
import torch

from warpwatch import Cost, Operator, case


def inputs(case, make):
    return {"a": make.normal(case["n"]), "b": make.normal(case["n"])}


def reference(a, b):
    return a + b


def cost(case):
    return Cost(flops=case["n"], bytes=12 * case["n"])


operator = Operator(
    "add_out",
    "Adds two vectors.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    cases={"quick": [case(n=1000), case(n=65536), case(n=1 << 20), case(n=1 << 24)]},
)


@operator.variant("torch", idea="one call of torch", devices=("cpu", "cuda"))
def by_torch(a, b):
    return a + b


@operator.variant("extension", idea="one kernel", devices=("cpu", "cuda"))
def add_out(a, b):
    out = torch.empty_like(a)
    extension_cpp.ops.myadd_out(a, b, out)
    return out
