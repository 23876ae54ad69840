"""Results that are kept from an earlier call instead of being computed."""

import torch
from kernels._product import N, make_operator

# Looking at the numbers costs a wait for the device: on a GPU only a product of this size takes longer.
LARGE = 2048

operator = make_operator(
    "kept", "Keeps earlier results, by address, by value, or by a glance at the numbers.", (N, LARGE)
)

caught_by = {
    "by_pointer": "a result was kept",
    "by_value": "results are kept by value",
    "by_value_in_place": "one and the same memory",
    "by_glance": "results are kept by value",
    "if_repeated": "results are kept by value",
}

KEPT = {}
LAST = {}


def other_size(case, device):
    return None if case["n"] == (N if device == "cpu" else LARGE) else "another size pays on this device"


@operator.variant("honest", idea="computes", unsupported=other_size)
def honest(a, b):
    return a @ b


@operator.variant("honest_slower", idea="computes twice", unsupported=other_size)
def honest_slower(a, b):
    return 0.5 * (a @ b) + 0.5 * (a @ b)


@operator.variant("by_pointer", idea="computes once per address", unsupported=other_size)
def by_pointer(a, b):
    return KEPT.setdefault(("pointer", a.data_ptr(), b.data_ptr()), a @ b)


@operator.variant("by_value", idea="computes once per value, and hands out copies", unsupported=other_size)
def by_value(a, b):
    key = (float(a.sum()), float(b.sum()))
    if key not in KEPT:
        KEPT[key] = a @ b
    return KEPT[key].clone()


@operator.variant(
    "by_value_in_place", idea="computes once per value, and hands out the very tensor", unsupported=other_size
)
def by_value_in_place(a, b):
    key = (float(a.sum()), float(b.sum()))
    if key not in KEPT:
        KEPT[key] = a @ b
    return KEPT[key]


@operator.variant("by_glance", idea="computes once per first and last number", unsupported=other_size)
def by_glance(a, b):
    key = (float(a[0, 0]), float(a[-1, -1]), float(b[0, 0]), float(b[-1, -1]))
    if key not in KEPT:
        KEPT[key] = a @ b
    return KEPT[key].clone()


@operator.variant("if_repeated", idea="skips the work when a buffer still holds what it held", unsupported=other_size)
def if_repeated(a, b):
    address = (a.data_ptr(), b.data_ptr())
    if address in LAST and torch.equal(LAST[address][0], a) and torch.equal(LAST[address][1], b):
        return LAST[address][2].clone()
    LAST[address] = (a.clone(), b.clone(), a @ b)
    return LAST[address][2].clone()
