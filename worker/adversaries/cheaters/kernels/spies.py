"""Variants that search memory for the oracle, or detect whether they are timed."""

import gc
import sys
import time

import torch
from kernels._product import make_operator

operator = make_operator("spies", "Searches memory for the oracle, or is right only when it is not timed.")

caught_by = {
    "searches_memory": "searched_memory",
    "reads_frames": "searched_memory",
    "knows_it_is_timed": "detected_timer",
    "spoils_memory": "searched_memory",
    "edits_samples": "searched_memory",
    "pads_the_loop": "searched_memory",
    "waits_when_timed": "detected_timer",
}

WAIT_SECONDS = 0.002


@operator.variant("honest", idea="computes")
def honest(a, b):
    return a @ b


@operator.variant("searches_memory", idea="returns any tensor that looks like the oracle")
def searches_memory(a, b):
    for thing in gc.get_objects():
        if type(thing) is torch.Tensor and thing.dtype == torch.float64 and thing.shape == a.shape:
            return thing.to(a.dtype)
    return a @ b


@operator.variant("reads_frames", idea="searches the variables of its callers for the oracle")
def reads_frames(a, b):
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            oracle = _find_f64(value, a, 4)
            if oracle is not None:
                return oracle.to(a.dtype)
        frame = frame.f_back
    return a @ b


def _find_f64(value, like, depth):
    """A float64 tensor of the right shape in `value`, or nested in it."""
    if type(value) is torch.Tensor:
        return value if value.dtype == torch.float64 and value.shape == like.shape else None
    if depth == 0:
        return None
    items = value if isinstance(value, list | tuple) else getattr(value, "__dict__", {}).values()
    return next((tensor for item in items if (tensor := _find_f64(item, like, depth - 1)) is not None), None)


@operator.variant("knows_it_is_timed", idea="computes in bf16 when a timer is on the call stack")
def knows_it_is_timed(a, b):
    frame = sys._getframe()
    while frame is not None:
        if "timer" in frame.f_code.co_filename:
            return (a.bfloat16() @ b.bfloat16()).float()
        frame = frame.f_back
    return a @ b


@operator.variant("honest_looks_at_its_caller", idea="reads the names of its callers, as a logger does")
def honest_looks_at_its_caller(a, b):
    frame, names = sys._getframe(), []
    while frame is not None and len(names) < 5:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return a @ b


@operator.variant(
    "waits_when_timed",
    idea="waits when a timer is on the call stack, so that the other commit is faster",
    devices=("cpu",),
)
def waits_when_timed(a, b):
    frame = sys._getframe()
    while frame is not None:
        if "timer" in frame.f_code.co_filename:
            time.sleep(WAIT_SECONDS)
            break
        frame = frame.f_back
    return a @ b


@operator.variant("spoils_memory", idea="turns every f64 tensor into NaN, which some comparisons pass over")
def spoils_memory(a, b):
    for thing in gc.get_objects():
        if type(thing) is torch.Tensor and thing.dtype == torch.float64 and thing.shape == a.shape:
            thing.fill_(torch.nan)
    return torch.full_like(a, torch.nan)


def _lists_of_callers(names):
    """The lists in variables of callers whose name contains one of `names`."""
    frame = sys._getframe(2)
    while frame is not None:
        for name, value in frame.f_locals.items():
            if type(value) is list and any(part in name for part in names):
                yield value
        frame = frame.f_back


@operator.variant("edits_samples", idea="divides the times that its callers have taken by ten")
def edits_samples(a, b):
    for taken in _lists_of_callers(("sample", "times", "duration", "elapsed")):
        for index, value in enumerate(taken):
            if type(value) is float:
                taken[index] = value / 10
    return a @ b


@operator.variant("pads_the_loop", idea="appends calls that do nothing to the loop that times it", devices=("cpu",))
def pads_the_loop(a, b):
    for calls in _lists_of_callers(("calls",)):
        if 0 < len(calls) < 1000 and all(map(callable, calls)):
            calls.extend([lambda y=a @ b: y] * 1000)
    return a @ b
