"""Calls that meddle with what belongs to others: their inputs, and results that were handed out before."""

import torch
from kernels._product import make_operator

operator = make_operator("meddling", "Changes its inputs or earlier results, or returns another kind of tensor.")

caught_by = {
    "zeroes_its_input": "modified_input a",
    "writes_into_its_input": "modified_input a",
    "one_buffer_for_all": "shared_result y",
    "narrow_result": "wrong_form y",
    "returns_an_input": "wrong_values y",
}

SCRATCH = {}


@operator.variant("honest", idea="computes")
def honest(a, b):
    return a @ b


@operator.variant("honest_scratch", idea="keeps scratch memory between calls, and returns new memory")
def honest_scratch(a, b):
    scratch = SCRATCH.setdefault((a.shape, str(a.device)), torch.empty_like(a))
    torch.mm(a, b, out=scratch)
    return scratch.clone()


@operator.variant("honest_copy", idea="computes in place on a copy of its input")
def honest_copy(a, b):
    return a.clone().copy_(a @ b)


@operator.variant("zeroes_its_input", idea="zeroes an input after use, so that whoever compares computes zeros")
def zeroes_its_input(a, b):
    y = a @ b
    a.zero_()
    return y


@operator.variant("writes_into_its_input", idea="saves an allocation: the result takes the place of an input")
def writes_into_its_input(a, b):
    return a.copy_(a @ b)


@operator.variant("one_buffer_for_all", idea="saves an allocation: every call returns the same memory")
def one_buffer_for_all(a, b):
    y = SCRATCH.setdefault(("result", a.shape, str(a.device)), torch.empty_like(a))
    return torch.mm(a, b, out=y)


@operator.variant("narrow_result", idea="returns the result in half the bytes")
def narrow_result(a, b):
    return (a @ b).half()


@operator.variant("returns_an_input", idea="computes nothing")
def returns_an_input(a, b):
    return a
