"""Cross entropy of logits, averaged over rows."""

import torch
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
from operators._liger import apply, first

from warpwatch import Cost, Operator, both_directions, case


def inputs(case, make):
    target = make.integers(0, case["vocabulary"], case["rows"]).long()
    return {"x": make.normal(case["rows"], case["vocabulary"]), "target": target}


def reference(x, target):
    return torch.nn.functional.cross_entropy(x, target)


def cost(case):
    n, passes = case["rows"] * case["vocabulary"], 1 if case.direction == "fwd" else 2
    return Cost(flops=5 * n, bytes=passes * case.element_bytes * n)


operator = Operator(
    "cross_entropy",
    "Cross entropy of logits, averaged over rows.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("x",),
    depth=lambda case: case["vocabulary"],
    cases={
        "quick": both_directions(case(rows=256, vocabulary=4096)),
        "full": both_directions(
            case("bf16", rows=2048, vocabulary=32000),
            case("bf16", rows=4096, vocabulary=32000),
            case("bf16", rows=2048, vocabulary=128256),
            case("bf16", rows=8192, vocabulary=32000),
        ),
    },
)


@operator.variant("torch", idea="torch calls")
def torch_calls(x, target):
    return torch.nn.functional.cross_entropy(x, target)


@operator.variant("liger", idea="the package's Triton kernel", devices=("cuda",))
def liger(x, target):
    # The kernel writes the gradient over the logits.
    return first(apply(LigerCrossEntropyFunction, x.clone(), target, weight=None))
