"""A convolution of images."""

import torch
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


def compute(x, w):
    return torch.nn.functional.conv2d(x, w, padding=2)


operator = Operator(
    "convolved",
    "A convolution with filters of five by five.",
    inputs=lambda case, make: {
        "x": make.normal(case["batch"], case["channels"], case["size"], case["size"]),
        "w": make.normal(case["channels"], case["channels"], 5, 5),
    },
    reference=compute,
    cost=lambda case: Cost(
        flops=50 * case["batch"] * (case["channels"] * case["size"]) ** 2,
        bytes=8 * case["batch"] * case["channels"] * case["size"] ** 2,
    ),
    cases={"quick": (case(batch=4, channels=24, size=40),)},
    depth=lambda case: 25 * case["channels"],
)
add_caches(operator, compute)
