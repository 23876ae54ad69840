"""Gradients whose work is done elsewhere: in the forward pass, which is honest, or in an earlier call, which is not."""

import torch

from warpwatch import Cost, Operator, case

N = 256

operator = Operator(
    "forward",
    "y = x a b, and the gradient of x, whose work may be done in the forward pass.",
    inputs=lambda case, make: {name: make.normal(N, N, scale=N**-0.5) for name in ("x", "a", "b")},
    reference=lambda x, a, b: x @ a @ b,
    cost=lambda case: Cost(flops=4 * N**3, bytes=4 * 4 * N**2),
    gradients=("x",),
    cases={"quick": (case("f32", "bwd", n=N),)},
    depth=lambda case: 2 * N,
)

caught_by = {
    "keeps_gradients": "cached_result",
    "keeps_incoming": "cached_result",
}

KEPT = {}


class _InForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a, b):
        product = a @ b
        ctx.save_for_backward(product)
        return x @ product

    @staticmethod
    def backward(ctx, incoming):
        (product,) = ctx.saved_tensors
        return incoming @ product.T, None, None


class _Kept(torch.autograd.Function):
    """Keeps a gradient under what `key` makes of the forward call and of the incoming gradient."""

    @staticmethod
    def forward(ctx, x, a, b, key):
        ctx.save_for_backward(a, b)
        ctx.call, ctx.key = object(), key
        return x @ a @ b

    @staticmethod
    def backward(ctx, incoming):
        a, b = ctx.saved_tensors
        key = ctx.key(ctx.call, incoming)
        if key not in KEPT:
            KEPT[key] = incoming @ b.T @ a.T
        return KEPT[key].clone(), None, None, None


@operator.variant("honest", idea="leaves both passes to autograd")
def honest(x, a, b):
    return x @ a @ b


@operator.variant("honest_in_forward", idea="multiplies a b in the forward pass, for the gradient as well")
def honest_in_forward(x, a, b):
    return _InForward.apply(x, a, b)


@operator.variant("keeps_gradients", idea="computes one gradient per forward call, whatever comes in")
def keeps_gradients(x, a, b):
    return _Kept.apply(x, a, b, lambda call, incoming: call)


@operator.variant("keeps_incoming", idea="computes one gradient per buffer of the incoming gradient, whoever calls")
def keeps_incoming(x, a, b):
    return _Kept.apply(x, a, b, lambda call, incoming: incoming.data_ptr())
