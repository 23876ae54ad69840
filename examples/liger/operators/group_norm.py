"""Group norm of a batch of channels."""

import torch
from liger_kernel.ops.group_norm import LigerGroupNormFunction
from operators._liger import apply, first

from warpwatch import Cost, Operator, both_directions, case


def inputs(case, make):
    channels = case["channels"]
    x = make.normal(case["batch"], channels, case["size"])
    return {"x": x, "w": make.normal(channels), "b": make.normal(channels), "groups": case["groups"]}


def reference(x, w, b, groups):
    return torch.nn.functional.group_norm(x, groups, w, b, 1e-5)


def cost(case):
    n, passes = case["batch"] * case["channels"] * case["size"], 2 if case.direction == "fwd" else 3
    return Cost(flops=6 * n, bytes=passes * case.element_bytes * n)


operator = Operator(
    "group_norm",
    "Group norm of a batch of channels.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("x", "w", "b"),
    depth=lambda case: case["channels"] * case["size"] // case["groups"],
    cases={
        "quick": both_directions(case(batch=2, channels=32, size=256, groups=4)),
        "full": both_directions(
            case(batch=16, channels=32, size=4096, groups=4),
            case(batch=8, channels=128, size=4096, groups=8),
            case(batch=32, channels=64, size=1024, groups=4),
            case(batch=4, channels=256, size=16384, groups=32),
        ),
    },
)


@operator.variant("torch", idea="torch calls")
def torch_calls(x, w, b, groups):
    return torch.nn.functional.group_norm(x, groups, w, b, 1e-5)


@operator.variant("liger", idea="the package's Triton kernel", devices=("cuda",))
def liger(x, w, b, groups):
    return first(apply(LigerGroupNormFunction, x, w, b, x.shape[1], groups, 1e-5))
