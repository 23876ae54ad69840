"""Kullback-Leibler divergence, batch mean, of log-probabilities."""

import torch
from liger_kernel.ops.kl_div import LigerKLDivLossFunction
from operators._liger import LOGITS, apply

from warpwatch import Cost, Operator


def inputs(case, make):
    y, target = (make.normal(case["rows"], case["vocabulary"]).log_softmax(-1) for _ in range(2))
    return {"y": y, "target": target.exp()}


def reference(y, target):
    return torch.nn.functional.kl_div(y, target, reduction="batchmean")


def cost(case):
    n, passes = case["rows"] * case["vocabulary"], 1 if case.direction == "fwd" else 2
    return Cost(flops=5 * n, bytes=passes * case.element_bytes * n)


operator = Operator(
    "kl_div",
    "Kullback-Leibler divergence, batch mean, of log-probabilities.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("y",),
    depth=lambda case: case["rows"] * case["vocabulary"],
    cases=LOGITS,
)


@operator.variant("torch", idea="torch calls")
def torch_calls(y, target):
    return torch.nn.functional.kl_div(y, target, reduction="batchmean")


@operator.variant("liger", idea="the package's Triton kernel", devices=("cuda",))
def liger(y, target):
    return apply(LigerKLDivLossFunction, y, target)
