"""The gradients of a chain of products, kept by the incoming gradient."""

import torch
from kernels._caches import CACHES, Cache

from warpwatch import Cost, Operator, case

caught_by = {
    "glance": "cached_result",
    "sums": "cached_result",
    "ends": "cached_result",
    "prefix": "cached_result",
    "sample": "cached_result",
    "digits": "cached_result",
    "moments": "cached_result",
    "structure": "cached_result",
    "contents": "cached_result",
    "checksum": "cached_result",
    "bucket_10": "cached_result",
    "bucket_100": "cached_result",
    "bucket_1000": "cached_result",
    "bucket_10000": "cached_result",
}


def compute(a, b):
    return a @ b @ a @ b / a.shape[0]


operator = Operator(
    "gradients",
    "a b a b / n.",
    inputs=lambda case, make: {"a": make.normal(case["n"], case["n"]), "b": make.normal(case["n"], case["n"])},
    reference=compute,
    cost=lambda case: Cost(flops=12 * case["n"] ** 3, bytes=5 * case.element_bytes * case["n"] ** 2),
    cases={"quick": (case("f32", "bwd", n=256),)},
    gradients=("a", "b"),
    depth=lambda case: case["n"] ** 2,
)
operator.variant("computes", idea="computes")(compute)


class WithCache(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, key, most):
        ctx.save_for_backward(a, b)
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (a, b)]
            y = compute(*leaves)
        ctx.cache = Cache(key, most, lambda g: torch.autograd.grad(y, leaves, g, retain_graph=True))
        return y.detach()

    @staticmethod
    def backward(ctx, g):
        return (*ctx.cache(g), None, None)


for name, (key, most) in CACHES.items():
    operator.variant(name, idea=f"keeps {most} gradients by {name}")(
        lambda a, b, key=key, most=most: WithCache.apply(a, b, key, most)
    )
