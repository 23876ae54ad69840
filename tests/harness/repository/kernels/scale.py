"""y = 3x + 1, in every right and wrong way that the harness must tell apart."""

import random
import sys
import time

import torch
from torch.autograd import Function

import db
import kernels
import server
import worker
from kernels._shared import cost_per_element
from warpwatch import Operator, both_directions, case

assert [package.OWNER for package in (worker, db, server)] == ["user"] * 3
assert kernels.__doc__ == "A user's folder of operators."


def inputs(case, make):
    if case.precision == "i32":
        return {"x": make.integers(-100, 100, case["n"])}
    return {"x": make.normal(case["n"])}


def reference(x):
    return 3 * x + 1


FLOATS = [case(precision, n=1000) for precision in ("f64", "f32", "bf16", "f16")]
operator = Operator(
    "scale",
    "Scaled and shifted.",
    inputs=inputs,
    reference=reference,
    cost=cost_per_element,
    gradients=("x",),
    cases={
        "quick": both_directions(case(n=1000), case("bf16", n=1000)),
        "full": (*both_directions(*FLOATS), case("i32", n=1000), case("i32", "bwd", n=1000), case(n=0), case(n=10**6)),
    },
)


def make_function(gradient):
    """An autograd function with a right forward pass and `gradient` as its backward pass."""

    class Scale(Function):
        @staticmethod
        def forward(ctx, x):
            return 3 * x + 1

        @staticmethod
        def backward(ctx, g):
            return gradient(g)

    return Scale


@operator.variant("good", idea="as the reference")
def good(x):
    return 3 * x + 1


@operator.variant("right_gradient", idea="an autograd function")
def right_gradient(x):
    return make_function(lambda g: 3 * g).apply(x)


def factors(x):
    """Made from the numbers, so it is wrong once they change."""
    return {"threes": torch.full_like(x, 3) + 0 * x, "x_again": x.clone()}


@operator.variant("prepares", idea="half the work before it is called", prepare=factors)
def prepares(x, threes, x_again):
    return threes * x_again + 1


def slow_factors(x):
    time.sleep(0.002)
    return {"count": len(x)}


@operator.variant("prepares_slowly", idea="a plan that takes long", prepare=slow_factors)
def prepares_slowly(x, count):
    assert count == len(x)
    return 3 * x + 1


@operator.variant("gradient_is_incoming", idea="forgets the factor")
def gradient_is_incoming(x):
    return make_function(lambda g: g).apply(x)


@operator.variant("gradient_is_none", idea="forgets the gradient")
def gradient_is_none(x):
    return make_function(lambda g: None).apply(x)


@operator.variant("gradient_too_short", idea="forgets the last element's gradient")
def gradient_too_short(x):
    return make_function(lambda g: 3 * g[:-1]).apply(x)


@operator.variant("detached", idea="forgets autograd")
def detached(x):
    return (3 * x + 1).detach()


@operator.variant("last_missing", idea="leaves the last element unwritten")
def last_missing(x):
    y = torch.empty_like(x)
    y[:-1] = 3 * x[:-1] + 1
    return y


@operator.variant("last_wrong", idea="does not add to the last element")
def last_wrong(x):
    y = 3 * x + 1
    y[-1] -= 1
    return y


@operator.variant("nan", idea="one number is no number")
def nan(x):
    y = 3 * x + 1
    y[7] = float("nan")
    return y


@operator.variant("wrong_shape", idea="one dimension too many")
def wrong_shape(x):
    return (3 * x + 1)[None]


@operator.variant("wrong_dtype", idea="too precise")
def wrong_dtype(x):
    return (3 * x + 1).double()


@operator.variant("no_tensor", idea="a list of numbers")
def no_tensor(x):
    return 3.0


@operator.variant("mutates", idea="in place")
def mutates(x):
    return x.mul_(3).add_(1)


KEPT = {}


@operator.variant("keeps_by_shape", idea="never computes the same shape twice")
def keeps_by_shape(x):
    return KEPT.setdefault(("shape", x.shape, x.dtype), 3 * x + 1)


@operator.variant("keeps_by_address", idea="never computes the same address twice, once it is warm")
def keeps_by_address(x):
    return KEPT.setdefault(("address", x.data_ptr(), x.dtype), 3 * x + 1)


@operator.variant("keeps_when_timed", idea="computes honestly only where the check looks")
def keeps_when_timed(x):
    if any("bench.py" in frame for frame in _files()):
        return KEPT.setdefault(("timed", x.data_ptr()), 3 * x + 1)
    return 3 * x + 1


@operator.variant("one_buffer", idea="every result in the same memory")
def one_buffer(x):
    buffer = KEPT.setdefault(("buffer", x.shape, x.dtype), torch.empty_like(x))
    return buffer.copy_(3 * x + 1)


@operator.variant("unsteady", idea="right, but never twice the same")
def unsteady(x):
    return 3 * x + 1 + random.random() * 1e-6


@operator.variant("raises", idea="has a bug")
def raises(x):
    raise KeyError("a bug of the kernel")


@operator.variant("leaves", idea="wants out")
def leaves(x):
    sys.exit(0)


@operator.variant("huge", idea="takes too much memory")
def huge(x):
    return torch.empty(2**46)


@operator.variant("memory_error", idea="takes too much of Python's memory")
def memory_error(x):
    return bytearray(2**60)


@operator.variant("bad_alloc", idea="native code that takes too much memory")
def bad_alloc(x):
    raise RuntimeError("std::bad_alloc")


@operator.variant(
    "picky", idea="f64 only", unsupported=lambda case, device: None if case.precision == "f64" else "needs f64"
)
def picky(x):
    return 3 * x + 1


@operator.variant("elsewhere", idea="GPU only", devices=("cuda",))
def elsewhere(x):
    return 3 * x + 1


@operator.variant("chatty", idea="prints, and reads its input")
def chatty(x):
    print('{"id": 1, "reply": {}}')
    assert sys.stdin.read() == ""
    return 3 * x + 1


def _files():
    frame = sys._getframe()
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back
