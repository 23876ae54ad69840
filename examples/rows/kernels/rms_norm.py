"""rms_norm: x over the root of the mean of its squares, row by row, times a weight per column."""

import torch

from warpwatch import Cost, Operator, case

EPSILON = 1e-6


def inputs(case, make):
    return {"x": make.normal(case["rows"], case["cols"]), "w": make.normal(case["cols"])}


def reference(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPSILON) * w


def cost(case):
    """Reads x and w, writes y."""
    elements = case["rows"] * case["cols"]
    return Cost(flops=4 * elements, bytes=case.element_bytes * (2 * elements + case["cols"]))


def register():
    """Fake kernel of the native operator, so that torch.compile knows it."""

    @torch.library.register_fake("rms_norm::forward")
    def _(x, w):
        return torch.empty_like(x)


operator = Operator(
    "rms_norm",
    "Root mean square norm over the rows of a matrix.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    depth=lambda case: case["cols"],
    native=register,
    cases={
        "quick": (case(rows=256, cols=512), case(rows=64, cols=4096), case(rows=2048, cols=64)),
        "edge": (case(rows=3, cols=5),),
    },
)


@operator.variant("v1", idea="torch's own norm")
def v1(x, w):
    return torch.nn.functional.rms_norm(x, w.shape, w, EPSILON)


@operator.variant("v2", idea="two passes over each row in C++", native=True, devices=("cpu",))
def v2(x, w):
    return torch.ops.rms_norm.forward(x, w)
