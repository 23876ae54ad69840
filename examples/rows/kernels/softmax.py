"""softmax: exp(x) over its sum, row by row."""

import torch

from warpwatch import Cost, Operator, both_directions, case


def inputs(case, make):
    return {"x": make.normal(case["rows"], case["cols"], scale=float(case["spread"]))}


def reference(x):
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def cost(case):
    """Forward reads x and writes y; backward reads the gradient and y, and writes dx."""
    elements = case["rows"] * case["cols"]
    tensors = 2 if case.direction == "fwd" else 3
    return Cost(flops=4 * elements, bytes=tensors * case.element_bytes * elements)


def register():
    """Fake kernel and gradient of the native operator, so that torch.compile and autograd know it."""

    @torch.library.register_fake("softmax::forward")
    def _(x):
        return torch.empty_like(x)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(output)

    def backward(ctx, g):
        return torch.ops.softmax.backward(g, ctx.saved_tensors[0])

    torch.library.register_autograd("softmax::forward", backward, setup_context=keep)


operator = Operator(
    "softmax",
    "Softmax over the rows of a matrix.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("x",),
    depth=lambda case: case["cols"],
    native=register,
    cases={
        "quick": both_directions(
            case(rows=256, cols=512, spread=1), case(rows=64, cols=4096, spread=1), case(rows=2048, cols=64, spread=1)
        ),
        "edge": both_directions(case(rows=16, cols=100, spread=60)),
    },
)


@operator.variant("v1", idea="torch's own softmax")
def v1(x):
    return torch.softmax(x, -1)


@operator.variant("v2", idea="three passes over each row in C++", native=True, devices=("cpu",))
def v2(x):
    return torch.ops.softmax.forward(x)
