"""Numbers that only ever stand in another order: honest answers are equal for different inputs."""

import torch

from warpwatch import Cost, Operator, case


def inputs(case, make):
    order = make.normal(case["rows"], case["n"]).argsort(dim=1)
    numbers = torch.linspace(-2, 3, case["n"], dtype=torch.float64, device=order.device)
    return {"x": numbers[order].to(torch.float64 if case.precision == "f64" else torch.float32)}


operator = Operator(
    "permuted",
    "Every row in order.",
    inputs=inputs,
    reference=lambda x: x.sort(dim=1).values,
    cost=lambda case: Cost(case["rows"] * case["n"], 2 * case.element_bytes * case["rows"] * case["n"]),
    cases={"quick": (case(rows=16, n=500), case("f64", rows=4, n=300))},
)
operator.variant("sorts", idea="sorts")(lambda x: x.sort(dim=1).values)
operator.variant("selects", idea="the largest first, and all of them")(
    lambda x: x.topk(x.shape[1], dim=1).values.flip(1)
)
operator.variant("ranks", idea="puts every number at its rank")(
    lambda x: torch.empty_like(x).scatter_(1, x.argsort(1).argsort(1), x)
)
