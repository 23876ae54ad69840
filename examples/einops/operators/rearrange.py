"""einops.rearrange, reduce and repeat, as the package of the measured commit computes them."""

import einops

from warpwatch import Cost, Operator, both_directions, case


def inputs(case, make):
    return {"x": make.normal(case["b"], case["c"], 8, 8)}


def reference(x):
    b, c, h, w = x.shape
    blocks = x.reshape(b, c, h // 2, 2, w // 2, 2)
    merged = blocks.permute(0, 2, 4, 1, 3, 5).reshape(b, h * w // 4, 4 * c)
    return merged, x.mean((2, 3)), x[:, :, None].expand(b, c, 3, h, w).reshape(b, 3 * c, h, w)


def cost(case):
    n = case["b"] * case["c"] * 64
    return Cost(flops=n, bytes=4 * 9 * n)


operator = Operator(
    "rearrange",
    "Rearrange, reduce and repeat a batch of images.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("x",),
    cases={"quick": both_directions(case(b=4, c=8), case(b=64, c=32)), "edge": (case(b=1, c=1),)},
)


@operator.variant("torch", idea="reshape, permute, mean and expand")
def torch_calls(x):
    return reference(x)


@operator.variant("einops", idea="three patterns")
def einops_calls(x):
    return (
        einops.rearrange(x, "b c (h p) (w q) -> b (h w) (c p q)", p=2, q=2),
        einops.reduce(x, "b c h w -> b c", "mean"),
        einops.repeat(x, "b c h w -> b (c r) h w", r=3),
    )
