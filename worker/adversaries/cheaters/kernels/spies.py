"""Variants that look around: for the answer in memory, and for whether anybody is timing them."""

import gc
import sys

import torch
from kernels._product import make_operator

operator = make_operator("spies", "Searches for the answer, or behaves only where nobody times it.")

caught_by = {
    "searches_memory": "searches for the reference's result",
    "reads_frames": "searches for the reference's result",
    "knows_it_is_timed": "the variant tells when it is timed",
}


@operator.variant("honest", idea="computes")
def honest(a, b):
    return a @ b


@operator.variant("searches_memory", idea="returns whatever looks like the oracle's answer")
def searches_memory(a, b):
    for thing in gc.get_objects():
        if type(thing) is torch.Tensor and thing.dtype == torch.float64 and thing.shape == a.shape:
            return thing.to(a.dtype)
    return a @ b


@operator.variant("reads_frames", idea="looks through its callers' variables for the oracle's answer")
def reads_frames(a, b):
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            found = _wide(value, a, 4)
            if found is not None:
                return found.to(a.dtype)
        frame = frame.f_back
    return a @ b


def _wide(value, like, depth):
    """A float64 tensor of the right shape in `value`, or in what it holds."""
    if type(value) is torch.Tensor:
        return value if value.dtype == torch.float64 and value.shape == like.shape else None
    if depth == 0:
        return None
    inside = value if isinstance(value, list | tuple) else getattr(value, "__dict__", {}).values()
    return next((found for item in inside if (found := _wide(item, like, depth - 1)) is not None), None)


@operator.variant("knows_it_is_timed", idea="half the work where a timer is on the call stack")
def knows_it_is_timed(a, b):
    frame = sys._getframe()
    while frame is not None:
        if "timer" in frame.f_code.co_filename:
            return (a.bfloat16() @ b.bfloat16()).float()
        frame = frame.f_back
    return a @ b
