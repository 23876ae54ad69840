"""Layer norm of rows with weight and bias."""

import torch
from liger_kernel.ops.layer_norm import LigerLayerNormFunction
from operators._liger import ROWS, apply, first

from warpwatch import Cost, Operator


def inputs(case, make):
    return {"x": make.normal(case["rows"], case["k"]), "w": make.normal(case["k"]), "b": make.normal(case["k"])}


def reference(x, w, b):
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), w, b, 1e-5)


def cost(case):
    n, passes = case["rows"] * case["k"], 2 if case.direction == "fwd" else 3
    return Cost(flops=6 * n, bytes=passes * case.element_bytes * n)


operator = Operator(
    "layer_norm",
    "Layer norm of rows with weight and bias.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("x", "w", "b"),
    depth=lambda case: case["k"],
    cases=ROWS,
)


@operator.variant("torch", idea="torch calls")
def torch_calls(x, w, b):
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), w, b, 1e-5)


@operator.variant("liger", idea="the package's Triton kernel", devices=("cuda",))
def liger(x, w, b):
    return first(apply(LigerLayerNormFunction, x, w, b, 1e-5))
