"""Root-mean-square norm of rows with a weight."""

import torch
from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from operators._liger import ROWS, apply

from warpwatch import Cost, Operator


def inputs(case, make):
    return {"x": make.normal(case["rows"], case["k"]), "w": make.normal(case["k"])}


def reference(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def cost(case):
    n, passes = case["rows"] * case["k"], 2 if case.direction == "fwd" else 3
    return Cost(flops=6 * n, bytes=passes * case.element_bytes * n)


operator = Operator(
    "rms_norm",
    "Root-mean-square norm of rows with a weight.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("x", "w"),
    depth=lambda case: case["k"],
    cases=ROWS,
)


@operator.variant("torch", idea="torch calls")
def torch_calls(x, w):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-6)


@operator.variant("liger", idea="the package's Triton kernel", devices=("cuda",))
def liger(x, w):
    return apply(LigerRMSNormFunction, x, w, 1e-6, in_place=False)
