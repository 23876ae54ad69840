"""A training step that repeats a part of an earlier one: y = x A B, and the gradient of x."""

import torch

from warpwatch import Cost, Operator, case

caught_by = {
    "product": "cached_result",
    "forward": "cached_result",
    "backward": "cached_result",
}

KEPT = {}


def keep(key, compute):
    if key not in KEPT:
        KEPT[key] = compute()
    return KEPT[key]


def inputs(case, make):
    n = case["n"]
    return {"x": make.normal(n, n), "a": make.normal(n, n, scale=n**-0.5), "b": make.normal(n, n, scale=n**-0.5)}


def compute(x, a, b):
    return x @ a @ b


operator = Operator(
    "steps",
    "x a b.",
    inputs=inputs,
    reference=compute,
    cost=lambda case: Cost(flops=4 * case["n"] ** 3, bytes=4 * case.element_bytes * case["n"] ** 2),
    cases={"quick": (case("f32", "step", n=256),)},
    gradients=("x",),
    depth=lambda case: 2 * case["n"],
)
operator.variant("computes", idea="computes")(compute)


class Partly(torch.autograd.Function):
    """Computes y, the product of the weights and the gradient, each of them once for an address where it is `kept`."""

    @staticmethod
    def forward(ctx, x, a, b, kept):
        ctx.address = x.data_ptr()
        ctx.kept = kept
        product = keep(("product", a.data_ptr()), lambda: a @ b) if kept == "product" else a @ b
        ctx.save_for_backward(product)
        return keep(("forward", x.data_ptr()), lambda: x @ a @ b).clone() if kept == "forward" else x @ a @ b

    @staticmethod
    def backward(ctx, g):
        (product,) = ctx.saved_tensors
        if ctx.kept == "backward":
            return keep(("backward", ctx.address), lambda: g @ product.T).clone(), None, None, None
        return g @ product.T, None, None, None


for name in caught_by:
    operator.variant(name, idea=f"keeps the {name} of an address")(
        lambda x, a, b, kept=name: Partly.apply(x, a, b, kept)
    )
