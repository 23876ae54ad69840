"""Two outputs, and gradients of a list of weights beside an input of whole numbers: y = sum_k x W_k, z = x[index]."""

from kernels._shared import cost_per_element
from warpwatch import Operator, both_directions, case


def inputs(case, make):
    n = case["n"]
    return {
        "x": make.normal(n, n),
        "weights": [make.normal(n, n, scale=n**-0.5) for _ in range(2)],
        "index": make.integers(0, n, 5),
    }


def reference(x, weights, index):
    return x @ weights[0] + x @ weights[1], x[index]


operator = Operator(
    "pair",
    "Two outputs, three gradients.",
    inputs=inputs,
    reference=reference,
    cost=cost_per_element,
    gradients=("x", "weights"),
    depth=lambda case: 2 * case["n"],
    cases={"quick": both_directions(case(n=33), case("f64", n=33))},
)


@operator.variant("good", idea="one product")
def good(x, weights, index):
    return x @ (weights[0] + weights[1]), x[index]


@operator.variant("second_weight_lost", idea="one weight's gradient is lost")
def second_weight_lost(x, weights, index):
    return x @ (weights[0] + weights[1].detach()), x[index]


@operator.variant("one_output", idea="forgets the second output")
def one_output(x, weights, index):
    return x @ (weights[0] + weights[1])
