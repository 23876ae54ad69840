"""Answers that follow from how the inputs are drawn, and not from the inputs."""

import torch

from warpwatch import Cost, Operator, case

ROWS, COLUMNS = 64, 16384

operator = Operator(
    "guessed",
    "Softmax of each row; the inputs are normal numbers from a known generator, so much of it can be guessed.",
    inputs=lambda case, make: {"x": make.normal(case["rows"], case["columns"])},
    reference=lambda x: torch.softmax(x, dim=1),
    cost=lambda case: Cost(flops=5 * case["rows"] * case["columns"], bytes=8 * case["rows"] * case["columns"]),
    cases={"quick": (case(rows=ROWS, columns=COLUMNS),)},
    depth=lambda case: case["columns"],
)

caught_by = {
    "uniform": "wrong_values y",
    "expected_sum": "wrong_values y",
    "half_the_sum": "wrong_values y",
}


@operator.variant("honest", idea="computes")
def honest(x):
    return torch.softmax(x, dim=1)


@operator.variant("honest_unshifted", idea="leaves out the maximum, which f32 does not need for such inputs")
def honest_unshifted(x):
    e = x.exp()
    return e / e.sum(dim=1, keepdim=True)


@operator.variant("uniform", idea="returns the mean of all answers; every number is small, so the difference is too")
def uniform(x):
    return torch.full_like(x, 1 / x.shape[1])


@operator.variant("expected_sum", idea="divides by the sum that normal numbers have on average")
def expected_sum(x):
    return x.exp().mul_(1 / (x.shape[1] * 1.6487212707))


@operator.variant("half_the_sum", idea="adds up half of the exponentials, and doubles the sum")
def half_the_sum(x):
    e = x.exp()
    return e.div_(2 * e[:, ::2].sum(dim=1, keepdim=True))
