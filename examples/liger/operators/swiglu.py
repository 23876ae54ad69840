"""SiLU of one half times the other."""

import torch
from liger_kernel.ops.swiglu import LigerSiLUMulFunction
from operators._liger import ROWS, apply

from warpwatch import Cost, Operator


def inputs(case, make):
    return {"a": make.normal(case["rows"], case["k"]), "b": make.normal(case["rows"], case["k"])}


def reference(a, b):
    return torch.nn.functional.silu(a) * b


def cost(case):
    n, passes = case["rows"] * case["k"], 3 if case.direction == "fwd" else 5
    return Cost(flops=6 * n, bytes=passes * case.element_bytes * n)


operator = Operator(
    "swiglu",
    "SiLU of one half times the other.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("a", "b"),
    depth=lambda case: 1,
    cases=ROWS,
)


@operator.variant("torch", idea="torch calls")
def torch_calls(a, b):
    return torch.nn.functional.silu(a) * b


@operator.variant("liger", idea="the package's Triton kernel", devices=("cuda",))
def liger(a, b):
    # The backward kernel writes the gradients over the inputs.
    return apply(LigerSiLUMulFunction, a.clone(), b.clone())
