"""Work of the gradient that moves into the forward pass: y = x A B C D, and the gradient of x.

`in_forward` multiplies A B C D in its forward pass when gradients are recorded. It hides nothing, and its backward pass
takes a quarter of the time. A step shows the price: three products of weights more than it saves.
"""

import torch

from warpwatch import Cost, Operator, both_directions, case

WEIGHTS = ("a", "b", "c", "d")
ROWS, N = 96, 128


def inputs(case, make):
    n = case["n"]
    return {"x": make.normal(case["rows"], n)} | {name: make.normal(n, n, scale=n**-0.5) for name in WEIGHTS}


def chain(x, a, b, c, d):
    return x @ a @ b @ c @ d


operator = Operator(
    "steps",
    "Four products in a row, and the gradient of the first factor.",
    inputs=inputs,
    reference=chain,
    cost=lambda case: Cost(8 * case["rows"] * case["n"] ** 2, 4 * (2 * case["rows"] * case["n"] + 4 * case["n"] ** 2)),
    cases={"quick": both_directions(case(rows=ROWS, n=N), directions=("fwd", "bwd", "step", "fwd_train"))},
    gradients=("x",),
    depth=lambda case: 4 * case["n"],
)


operator.variant("chain", idea="one product after the other, in both passes")(chain)


class InForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a, b, c, d):
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(a @ b @ c @ d)
        return chain(x, a, b, c, d)

    @staticmethod
    def backward(ctx, g):
        (product,) = ctx.saved_tensors
        return g @ product.T, None, None, None, None


@operator.variant("in_forward", idea="does the gradient's work in the forward pass")
def in_forward(x, a, b, c, d):
    return InForward.apply(x, a, b, c, d)
