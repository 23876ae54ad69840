"""Rotary position embedding of queries and keys."""

import torch
from liger_kernel.ops.rope import LigerRopeFunction
from operators._liger import apply

from warpwatch import Cost, Operator, both_directions, case


def inputs(case, make):
    shape = (case["batch"], case["heads"], case["length"], 128)
    angle = torch.outer(torch.arange(case["length"]), 1e4 ** (-torch.arange(0, 128, 2) / 128)).repeat(1, 2)
    q, k = make.normal(*shape), make.normal(*shape)
    cos, sin = angle.cos().to(q)[None], angle.sin().to(q)[None]
    return {"q": q, "k": k, "cos": cos, "sin": sin}


def rotated(x, cos, sin):
    low, high = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-high, low), -1) * sin[:, None]


def reference(q, k, cos, sin):
    return rotated(q, cos, sin), rotated(k, cos, sin)


def cost(case):
    n = 2 * case["batch"] * case["heads"] * case["length"] * 128
    return Cost(flops=3 * n, bytes=2 * case.element_bytes * n)


operator = Operator(
    "rope",
    "Rotary position embedding of queries and keys.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("q", "k"),
    depth=lambda case: 2,
    cases={
        "quick": both_directions(case(batch=1, heads=4, length=128)),
        "full": both_directions(
            case("bf16", batch=1, heads=32, length=2048),
            case("bf16", batch=2, heads=32, length=4096),
            case("bf16", batch=8, heads=16, length=1024),
            case("bf16", batch=1, heads=64, length=8192),
        ),
    },
)


@operator.variant("torch", idea="torch calls")
def torch_calls(q, k, cos, sin):
    return reference(q, k, cos, sin)


@operator.variant("liger", idea="the package's Triton kernel", devices=("cuda",))
def liger(q, k, cos, sin):
    # The kernel rotates in place.
    return apply(LigerRopeFunction, q.clone(), k.clone(), cos, sin)
