"""softsign: y = x / (1 + |x|), element by element."""

import torch

from warpwatch import Cost, Operator, both_directions, case


def inputs(case, make):
    return {"x": make.normal(case["n"])}


def reference(x):
    return x / (1 + x.abs())


def cost(case):
    """Three operations an element; forward reads x and writes y, backward reads g and x and writes dx."""
    tensors = 2 if case.direction == "fwd" else 3
    return Cost(flops=3 * case["n"], bytes=tensors * case.element_bytes * case["n"])


def register():
    """Fake kernel and gradient of the native operator, so that torch.compile and autograd know it."""

    @torch.library.register_fake("softsign::forward")
    def _(x):
        return torch.empty_like(x)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    def backward(ctx, g):
        return torch.ops.softsign.backward(g, ctx.saved_tensors[0])

    torch.library.register_autograd("softsign::forward", backward, setup_context=keep)


operator = Operator(
    "softsign",
    "Soft sign, element-wise.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("x",),
    native=register,
    cases={"quick": both_directions(case(n=65536), case(n=1001))},
)


@operator.variant("v1", idea="three torch calls")
def v1(x):
    return x / (1 + x.abs())


@operator.variant("v2", idea="torch's own softsign")
def v2(x):
    return torch.nn.functional.softsign(x)


@operator.variant("v3", idea="one pass over memory in C++", native=True, devices=("cpu",))
def v3(x):
    return torch.ops.softsign.forward(x)
