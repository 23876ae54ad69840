"""y[i] = a[i] @ b[i] over a batch, tile by tile along the inner dimension."""

import torch

from warpwatch import Cost, Operator, both_directions, case

TILE = 16

caught_by = {
    "skips_last_tile": "wrong_values y",
    "stale_tile": "wrong_values y",
    "f16_accumulator": "wrong_values y",
    "batch_folded": "wrong_values y",
    "dropped_transpose": "wrong_values grad a",
    "gradient_is_input": "wrong_values grad b",
    "gradient_is_incoming": "wrong_values grad a",
}


def inputs(case, make):
    return {
        "a": make.normal(case["batch"], case["m"], case["k"]),
        "b": make.normal(case["batch"], case["k"], case["n"]),
    }


def cost(case):
    m, n, k = case["m"], case["n"], case["k"]
    return Cost(2 * case["batch"] * m * n * k, case.element_bytes * case["batch"] * (m * k + k * n + m * n))


operator = Operator(
    "bmm",
    "y[i] = a[i] @ b[i] over a batch.",
    inputs=inputs,
    reference=lambda a, b: a @ b,
    cost=cost,
    gradients=("a", "b"),
    depth=lambda case: max(case["k"], case["m"], case["n"]),
    cases={
        "quick": (
            *both_directions(case(batch=3, m=24, n=24, k=24), case(batch=2, m=33, n=20, k=50)),
            case("f16", batch=2, m=16, n=16, k=4096),
        ),
        "edge": (case(batch=1, m=1, n=1, k=1), case(batch=2, m=3, n=5, k=17)),
    },
)


def tiles(k):
    return [slice(first, first + TILE) for first in range(0, k, TILE)]


@operator.variant("tiled", idea="sums of products of tiles, kept in f32 or wider")
def tiled(a, b):
    wide = torch.promote_types(a.dtype, torch.float32)
    y = torch.zeros(a.shape[0], a.shape[1], b.shape[2], dtype=wide, device=a.device)
    for part in tiles(a.shape[2]):
        y = y + a[:, :, part].to(wide) @ b[:, part].to(wide)
    return y.to(a.dtype)


@operator.variant("own_gradient", idea="the product with its gradient written by hand")
def own_gradient(a, b):
    return with_gradient(lambda g, a, b: (g @ b.mT, a.mT @ g))(a, b)


@operator.variant("skips_last_tile", idea="leaves out the last tile unless it is whole")
def skips_last_tile(a, b):
    whole = a.shape[2] // TILE * TILE
    return tiled(a[:, :, :whole], b[:, :whole])


@operator.variant("stale_tile", idea="multiplies the last tile of a by the tile of b before it")
def stale_tile(a, b):
    y = torch.zeros(a.shape[0], a.shape[1], b.shape[2], dtype=a.dtype, device=a.device)
    held = b[:, tiles(a.shape[2])[0]]
    for part in tiles(a.shape[2]):
        if part.stop <= a.shape[2]:
            held = b[:, part]
        y = y + a[:, :, part] @ held[:, : a[:, :, part].shape[2]]
    return y


@operator.variant("f16_accumulator", idea="keeps the sum in f16")
def f16_accumulator(a, b):
    y = torch.zeros(a.shape[0], a.shape[1], b.shape[2], dtype=torch.float16, device=a.device)
    for part in tiles(a.shape[2]):
        y = y + (a[:, :, part] @ b[:, part]).to(torch.float16)
    return y.to(a.dtype)


@operator.variant(
    "batch_folded", idea="folds the batch into the inner dimension, so that every result is the sum of all"
)
def batch_folded(a, b):
    return torch.einsum("bmk,bkn->mn", a, b).expand(a.shape[0], -1, -1).contiguous()


@operator.variant("dropped_transpose", idea="g @ b in place of g @ bᵀ where the shapes allow it")
def dropped_transpose(a, b):
    square = b.shape[1] == b.shape[2]
    return with_gradient(lambda g, a, b: (g @ (b if square else b.mT), a.mT @ g))(a, b)


@operator.variant("gradient_is_input", idea="returns b as the gradient of b")
def gradient_is_input(a, b):
    return with_gradient(lambda g, a, b: (g @ b.mT, b))(a, b)


@operator.variant("gradient_is_incoming", idea="hands the incoming gradient on where its shape fits")
def gradient_is_incoming(a, b):
    fits = b.shape[1] == b.shape[2]
    return with_gradient(lambda g, a, b: (g.clone() if fits else g @ b.mT, a.mT @ g))(a, b)


def with_gradient(gradient):
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        def backward(ctx, g):
            return gradient(g, *ctx.saved_tensors)

    return Product.apply
