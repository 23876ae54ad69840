"""A linear layer and the cross entropy of its logits."""

import torch
from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
from operators._liger import apply, first

from warpwatch import Cost, Operator, both_directions, case


def inputs(case, make):
    target = make.integers(0, case["vocabulary"], case["rows"]).long()
    w = make.normal(case["vocabulary"], case["k"], scale=case["k"] ** -0.5)
    return {"x": make.normal(case["rows"], case["k"]), "w": w, "target": target}


def reference(x, w, target):
    return torch.nn.functional.cross_entropy(x @ w.T, target)


def cost(case):
    rows, k, vocabulary = case["rows"], case["k"], case["vocabulary"]
    products = 1 if case.direction == "fwd" else 2
    return Cost(flops=2 * products * rows * k * vocabulary, bytes=case.element_bytes * k * (rows + vocabulary))


operator = Operator(
    "fused_linear_cross_entropy",
    "A linear layer and the cross entropy of its logits.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("x", "w"),
    depth=lambda case: case["k"] + case["vocabulary"],
    cases={
        "quick": both_directions(case(rows=128, k=256, vocabulary=1024)),
        "full": both_directions(
            case("bf16", rows=1024, k=2048, vocabulary=32000),
            case("bf16", rows=4096, k=4096, vocabulary=32000),
            case("bf16", rows=2048, k=4096, vocabulary=128256),
            case("bf16", rows=8192, k=2048, vocabulary=32000),
        ),
    },
)


@operator.variant("torch", idea="torch calls")
def torch_calls(x, w, target):
    return torch.nn.functional.cross_entropy(x @ w.T, target)


@operator.variant("liger", idea="the package's Triton kernel", devices=("cuda",))
def liger(x, w, target):
    return first(apply(LigerFusedLinearCrossEntropyFunction, x, w, target))
