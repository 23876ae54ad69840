"""Numbers of few kinds, whose simple statistics often agree."""

import torch

from warpwatch import Cost, Operator, case


def inputs(case, make):
    # Of normal numbers, some are exactly zero.
    return {name: 1 - 2 * (make.normal(case["n"], case["n"]) < 0).float() for name in ("a", "b")}


operator = Operator(
    "signs",
    "A product of signs.",
    inputs=inputs,
    reference=lambda a, b: a @ b,
    cost=lambda case: Cost(2 * case["n"] ** 3, 12 * case["n"] ** 2),
    cases={"quick": (case(n=64), case(n=5))},
    depth=lambda case: case["n"],
)
operator.variant("floats", idea="a product")(lambda a, b: a @ b)


@operator.variant("choices", idea="adds or subtracts")
def choices(a, b):
    return torch.stack(
        [torch.where(row[:, None] > 0, b * row.abs()[:, None], -b * row.abs()[:, None]).sum(0) for row in a]
    )


@operator.variant("refuses", idea="takes signs alone", no_special_values="it takes signs alone")
def refuses(a, b):
    if not bool((a.abs() == 1).all()):
        raise ValueError("a must hold 1 and -1 alone")
    return a @ b
