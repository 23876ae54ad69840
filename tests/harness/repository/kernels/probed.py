"""y = 3x + 1 by variants that plain runs find right: each is wrong where one probe alone looks."""

import ctypes

import torch

from kernels._shared import cost_per_element
from warpwatch import Operator, both_directions, case


def inputs(case, make):
    return {"x": make.normal(case["n"])}


def reference(x):
    return 3 * x + 1


operator = Operator(
    "probed",
    "Scaled and shifted.",
    inputs=inputs,
    reference=reference,
    cost=cost_per_element,
    gradients=("x",),
    cases={"quick": both_directions(case(n=1000)), "edge": (case(n=0), case(n=1))},
)


@operator.variant("good", idea="as the reference")
def good(x):
    return 3 * x + 1


@operator.variant("in_torch_memory", idea="allocates by itself")
def in_torch_memory(x):
    y = torch.empty_like(x)
    y.copy_(3 * x + 1)
    return y


@operator.variant("writes_past_end", idea="four bytes too many")
def writes_past_end(x):
    y = in_torch_memory(x)
    ctypes.c_int32.from_address(y.data_ptr() + y.nbytes).value = 5
    return y


@operator.variant("writes_past_input", idea="and into its input's surroundings")
def writes_past_input(x):
    ctypes.c_int32.from_address(x.data_ptr() + x.nbytes).value = 5
    return 3 * x + 1


@operator.variant("reads_past_end", idea="multiplies what lies behind by nought")
def reads_past_end(x):
    beyond = ctypes.c_float.from_address(x.data_ptr() + x.nbytes).value
    return 3 * x + 1 + 0 * beyond


@operator.variant(
    "counts_on_zeros", idea="adds to memory that was never written, and that the system hands out as zeros"
)
def counts_on_zeros(x):
    y = torch.empty(2**24)[: x.numel()]
    y[:-1] = 3 * x[:-1] + 1
    y[-1:] += 3 * x[-1:] + 1
    return y


@operator.variant("ignores_strides", idea="takes the pointer for the whole truth")
def ignores_strides(x):
    return 3 * x.as_strided(x.shape, (1,)) + 1


@operator.variant("needs_alignment", idea="vectors of 16 bytes, whatever the pointer")
def needs_alignment(x):
    return 3 * x + (1 if x.data_ptr() % 16 == 0 else 2)


@operator.variant("refuses_strides", idea="says so")
def refuses_strides(x):
    if not x.is_contiguous():
        raise ValueError("x must be contiguous")
    return 3 * x + 1


@operator.variant("trips_over_strides", idea="says something else")
def trips_over_strides(x):
    if not x.is_contiguous():
        raise KeyError("no idea")
    return 3 * x + 1


@operator.variant("swallows_nan", idea="nought where there is no number")
def swallows_nan(x):
    return torch.where(x == x, 3 * x + 1, 0.0)


@operator.variant("swallows_infinity", idea="saturates")
def swallows_infinity(x):
    return torch.where(x.abs() == torch.inf, 1e30, 3 * x + 1)


@operator.variant("spreads_nan", idea="a NaN anywhere is one everywhere")
def spreads_nan(x):
    return 3 * x + 1 + 0 * x.sum()


@operator.variant("owns_up_to_spreading", idea="the same, and says so", no_special_values="sums over all elements")
def owns_up_to_spreading(x):
    return spreads_nan(x)


@operator.variant("refuses_nan", idea="takes numbers alone")
def refuses_nan(x):
    if x.isnan().any():
        raise ValueError("x has NaN")
    return 3 * x + 1


@operator.variant("unaware_gradient", idea="right, with a gradient that ignores strides")
def unaware_gradient(x):
    return Unaware.apply(x)


class Unaware(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x + 1

    @staticmethod
    def backward(ctx, g):
        return 3 * g.as_strided(g.shape, (1,))
