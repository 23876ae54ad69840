"""An operator whose reference divides zero by zero where a mask hides the result."""

import torch

from warpwatch import Cost, Operator, case


def reference(x):
    hidden = torch.arange(len(x), device=x.device) < len(x) // 2
    kept = x.masked_fill(hidden, 0.0)
    return torch.where(hidden, 0.0, kept * x / kept)


operator = Operator(
    "unjudged",
    "The second half of its input.",
    inputs=lambda case, make: {"x": make.normal(case["n"])},
    reference=reference,
    cost=lambda case: Cost(case["n"], 8 * case["n"]),
    cases={"quick": (case(n=10), case("f32", "bwd", n=10))},
    gradients=("x",),
)


@operator.variant("right", idea="a product with a mask")
def right(x):
    return x * (torch.arange(len(x), device=x.device) >= len(x) // 2)


@operator.variant("right_as_well", idea="a choice")
def right_as_well(x):
    return torch.where(torch.arange(len(x), device=x.device) < len(x) // 2, 0.0, x)
