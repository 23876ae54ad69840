"""y = 3x + 1 for rows of a batch, by right variants whose bits depend on different things."""

import random

import torch

from kernels._shared import cost_per_element
from warpwatch import Operator, both_directions, case


def inputs(case, make):
    return {"x": make.normal(case["rows"], case["n"]), "shift": make.normal(case["n"])}


def reference(x, shift):
    return 3 * x + shift


operator = Operator(
    "rows",
    "Scaled and shifted rows.",
    inputs=inputs,
    reference=reference,
    cost=cost_per_element,
    gradients=("x", "shift"),
    cases={"quick": (*both_directions(case(rows=8, n=8)), case(rows=5, n=4), case(rows=2, n=4))},
)
calls = 0
drawn = random.Random(0)


@operator.variant("alone", idea="each row by itself")
def alone(x, shift):
    return 3 * x + shift


@operator.variant("neighbour", idea="a trace of the row before", no_special_values="a trace of NaN is NaN")
def neighbour(x, shift):
    return 3 * x + shift + 1e-7 * torch.cat([x[:1], x[:-1]])


@operator.variant("split", idea="adds in an order that the size of the batch decides")
def split(x, shift):
    return 3 * x + shift if len(x) < 4 else (x + shift) + 2 * x


@operator.variant("unsteady", idea="every second call takes the other last bit")
def unsteady(x, shift):
    global calls
    calls += 1
    y = 3 * x + shift
    if calls // 2 % 2:
        y[0, 0] = torch.nextafter(y[0, 0], y[0, 0] + 1)
    return y


@operator.variant("drawn", idea="each call draws one of four last bits")
def draws(x, shift):
    return (3 * x + shift) * (1 + 1.2e-7 * drawn.randrange(4))


@operator.variant("one_size", idea="written for whole batches")
def one_size(x, shift):
    if len(x) == 4:
        raise RuntimeError("eight rows or none")
    return 3 * x + shift


@operator.variant(
    "refuses", idea="says so", unsupported=lambda case, device: "too few rows" if case["rows"] < 8 else None
)
def refuses(x, shift):
    return 3 * x + shift
