"""SiLU of one half times the other."""

import torch
from liger_kernel.ops.swiglu import LigerSiLUMulFunction
from operators._liger import apply

from warpwatch import Cost, Operator, both_directions, case


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
    cases={
        "quick": both_directions(case(rows=512, k=1024)),
        "full": both_directions(
            case("bf16", rows=2048, k=4096),
            case("bf16", rows=4096, k=8192),
            case("bf16", rows=8192, k=1024),
            case("bf16", rows=1024, k=16384),
        ),
    },
)


@operator.variant("torch", idea="torch calls")
def torch_calls(a, b):
    return torch.nn.functional.silu(a) * b


@operator.variant("liger", idea="the package's Triton kernel", devices=("cuda",))
def liger(a, b):
    # The backward kernel writes the gradients over the inputs.
    return apply(LigerSiLUMulFunction, a.clone(), b.clone())
