"""Cross entropy of logits, averaged over rows."""

import torch
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
from operators._liger import LOGITS, apply, first

from warpwatch import Cost, Operator


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
    cases=LOGITS,
)


@operator.variant("torch", idea="torch calls")
def torch_calls(x, target):
    return torch.nn.functional.cross_entropy(x, target)


@operator.variant("liger", idea="the package's Triton kernel", devices=("cuda",))
def liger(x, target):
    # The kernel writes the gradient over the logits.
    return first(apply(LigerCrossEntropyFunction, x.clone(), target, weight=None))
