"""y = softmax of each row of x over its first `length` columns, and zero in the other columns."""

import torch

from warpwatch import Cost, Operator, both_directions, case

caught_by = {
    "wrong_mask_edge": "wrong_values y",
    "nan_swallowed": "probe special values",
    "input_mutated": "modified_input x",
    "no_maximum": "wrong_values y",
    "one_row_short": "wrong_values y",
}


def inputs(case, make):
    rows, columns = case["rows"], case["columns"]
    # Gradients at large numbers are nearly zero, so rounding errors would dominate them.
    scale = 40.0 if case.direction == "fwd" else 1.0
    return {"x": make.normal(rows, columns, scale=scale), "length": make.integers(1, columns + 1, rows)}


def inside(x, length):
    return torch.arange(x.shape[1], device=x.device) < length[:, None]


def reference(x, length):
    return torch.softmax(x.masked_fill(~inside(x, length), -torch.inf), dim=1)


operator = Operator(
    "softmax",
    "Softmax of each row over its first columns.",
    inputs=inputs,
    reference=reference,
    cost=lambda case: Cost(5 * case["rows"] * case["columns"], 2 * case.element_bytes * case["rows"] * case["columns"]),
    gradients=("x",),
    depth=lambda case: case["columns"],
    cases={
        "quick": both_directions(case(rows=64, columns=65), case("f64", rows=7, columns=128)),
        "edge": (case(rows=1, columns=1), case(rows=3, columns=2)),
    },
)


@operator.variant("by_hand", idea="maximum, exponentials, sum")
def by_hand(x, length):
    return normalised(x, inside(x, length))


@operator.variant("wrong_mask_edge", idea="takes one column too many, where there is one")
def wrong_mask_edge(x, length):
    return normalised(x, inside(x, length + 1))


@operator.variant(
    "nan_swallowed", idea="finds the maximum with a comparison that is false for NaN, and counts NaN as zero"
)
def nan_swallowed(x, length):
    return normalised(torch.where(x.isnan(), -torch.inf, x), inside(x, length))


@operator.variant("input_mutated", idea="masks in place")
def input_mutated(x, length):
    with torch.no_grad():
        x.masked_fill_(~inside(x, length), -1e30)
    return by_hand(x, length)


@operator.variant("no_maximum", idea="does not subtract the maximum, so large numbers overflow in f32")
def no_maximum(x, length):
    e = x.masked_fill(~inside(x, length), -torch.inf).exp()
    return e / e.sum(dim=1, keepdim=True)


@operator.variant("one_row_short", idea="processes one row too few, and leaves the last one unwritten")
def one_row_short(x, length):
    y = torch.empty_like(x)
    y[:-1] = by_hand(x, length)[:-1]
    return y


def normalised(x, mask):
    masked = x.masked_fill(~mask, -torch.inf)
    e = (masked - masked.amax(dim=1, keepdim=True)).exp()
    return e / e.sum(dim=1, keepdim=True)
