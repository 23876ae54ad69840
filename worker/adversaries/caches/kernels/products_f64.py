"""The same in f64."""

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


def compute(a, b):
    return a @ b @ a @ b / a.shape[0]


operator = Operator(
    "products_f64",
    "a b a b / n.",
    inputs=lambda case, make: {"a": make.normal(case["n"], case["n"]), "b": make.normal(case["n"], case["n"])},
    reference=compute,
    cost=lambda case: Cost(flops=6 * case["n"] ** 3, bytes=3 * case.element_bytes * case["n"] ** 2),
    cases={"quick": (case("f64", n=256),)},
    depth=lambda case: case["n"] ** 2,
)
add_caches(operator, compute)
