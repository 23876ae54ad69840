"""Variants that compute until they believe that nobody compares any more."""

import gc
import time

import torch
from kernels._product import make_operator

operator = make_operator("phases", "Tells the calls that are checked from those that are only timed.")

caught_by = {
    "after_warm_up": "wrong_values y",
    "while_collection_is_off": "reduced_precision bf16",
    "in_a_hurry": "cached_result",
    "known_seeds": "cached_result",
}

CHECKED_CALLS = 100
"""More than any harness needs to check and to warm up."""
HURRY_SECONDS = 50e-6
STEP, FURTHER, SETS = 7919, 1_000_003, 3
SEEDS = [42, *(base + STEP * (index + 1) for base in (0, FURTHER) for index in range(SETS))]
"""Public harnesses draw from 42; the others are those of Warpwatch, whose source is public too."""
CALLS = {}
KEPT = {}
ANSWERS = {}


@operator.variant("honest", idea="computes")
def honest(a, b):
    return a @ b


@operator.variant("honest_first_call", idea="plans in its first call, and computes in every call")
def honest_first_call(a, b):
    if ("plan", a.shape) not in CALLS:
        CALLS["plan", a.shape] = a.shape[1] // 2
    half = CALLS["plan", a.shape]
    return torch.addmm(a[:, :half] @ b[:half], a[:, half:], b[half:])


@operator.variant("after_warm_up", idea="computes 100 times, then leaves out half of the terms")
def after_warm_up(a, b):
    CALLS["all"] = CALLS.get("all", 0) + 1
    if CALLS["all"] <= CHECKED_CALLS:
        return a @ b
    half = a.shape[1] // 2
    return torch.mm(a[:, :half], b[:half])


@operator.variant("while_collection_is_off", idea="computes in bf16 while garbage is not collected, as timers do")
def while_collection_is_off(a, b):
    if gc.isenabled():
        return a @ b
    return (a.bfloat16() @ b.bfloat16()).float()


@operator.variant(
    "in_a_hurry", idea="returns what it has of this buffer when the last call ended just now", devices=("cpu",)
)
def in_a_hurry(a, b):
    address = (a.data_ptr(), b.data_ptr())
    if address not in KEPT or time.perf_counter() - KEPT["end"] > HURRY_SECONDS:
        KEPT[address] = a @ b
    y = KEPT[address].clone()
    KEPT["end"] = time.perf_counter()
    return y


def _answers(a):
    """The answers for the inputs that the known seeds give, by their first number."""
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        drawn = [torch.randn(a.shape, generator=generator) for _ in range(2)]
        ANSWERS[float(drawn[0][0, 0])] = drawn[0] @ drawn[1]
    return ANSWERS


@operator.variant("known_seeds", idea="has the answers for the inputs that known seeds give", devices=("cpu",))
def known_seeds(a, b):
    answer = (ANSWERS or _answers(a)).get(float(a[0, 0]))
    return a @ b if answer is None else answer.clone()
