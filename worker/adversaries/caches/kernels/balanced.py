"""A matrix whose rows and columns are normalised in turn, which takes many small steps."""

from kernels._caches import add_caches

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


STEPS = 40


def compute(x):
    y = x.exp()
    for _ in range(STEPS):
        y = y / y.sum(1, keepdim=True)
        y = y / y.sum(0, keepdim=True)
    return y


operator = Operator(
    "balanced",
    "Sinkhorn's steps.",
    inputs=lambda case, make: {"x": make.normal(case["rows"], case["columns"])},
    reference=compute,
    cost=lambda case: Cost(flops=5 * STEPS * case["rows"] * case["columns"], bytes=8 * case["rows"] * case["columns"]),
    cases={"quick": (case(rows=128, columns=192),)},
    depth=lambda case: STEPS * (case["rows"] + case["columns"]),
)
add_caches(operator, compute)
