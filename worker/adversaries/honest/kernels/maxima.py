"""Maxima and their gradients: NaN that wins or loses, ties, and gradients that may go to any of the tied."""

import torch

from warpwatch import Cost, Operator, both_directions, case


def inputs(case, make):
    x = make.normal(case["rows"], case["n"])
    # Rounded numbers stand twice and more among so many.
    return {"x": (4 * x).round() / 4 if case.layout == "tied" else x}


operator = Operator(
    "maxima",
    "The maximum of every row.",
    inputs=inputs,
    reference=lambda x: x.amax(1),
    cost=lambda case: Cost(case["rows"] * case["n"], case.element_bytes * case["rows"] * case["n"]),
    cases={
        "quick": (
            *both_directions(case(rows=64, n=48), case(rows=3, n=9), case("bf16", rows=16, n=40)),
            *both_directions(case("f32", "fwd", "tied", rows=64, n=48)),
            case("f64", rows=7, n=31),
        )
    },
    gradients=("x",),
)
LOSES = "a comparison with NaN is false, so NaN loses"


@operator.variant("shared", idea="the tied share the gradient")
def shared(x):
    return torch.amax(x, 1)


@operator.variant("first", idea="one of the tied gets the gradient")
def first(x):
    return x.max(1).values


@operator.variant("sorted", idea="the last in order")
def sorted_last(x):
    return x.sort(1).values[:, -1]


@operator.variant("halves", idea="maxima of two halves, again and again")
def halves(x):
    while x.shape[1] > 1:
        half = (x.shape[1] + 1) // 2
        x = torch.maximum(x[:, :half], x[:, -half:])
    return x[:, 0]


@operator.variant("compares", idea="as `if (x > best) best = x`", no_special_values=LOSES)
def compares(x):
    best = x[:, 0]
    for column in x.unbind(1)[1:]:
        best = torch.where(column > best, column, best)
    return best
