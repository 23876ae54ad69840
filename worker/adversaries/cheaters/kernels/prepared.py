"""The work done in `prepare`, which is not part of a call's time."""

from dataclasses import dataclass

import torch
from kernels._product import make_operator

operator = make_operator("prepared", "Computes the answer before it is called.")

caught_by = {
    "answer": "prepared_answer y",
    "in_an_object": "prepared_answer y",
    "in_a_closure": "prepared_answer y",
    "in_a_global": "prepared_answer y",
    "scaled_and_transposed": "prepared_answer y",
    "scrambled": "prepared_answer",
}

KEPT = {}
KEY = 0x2A55AA55


@dataclass(frozen=True)
class Plan:
    half: int


class Holder:
    def __init__(self, **values):
        self.values = values


@operator.variant("honest", idea="computes")
def honest(a, b):
    return a @ b


@operator.variant("honest_format", idea="stores b by columns", prepare=lambda a, b: {"columns": b.mT.contiguous()})
def honest_format(a, b, columns):
    return a @ columns.mT


@operator.variant(
    "honest_copies",
    idea="stores both matrices once more, and computes from these",
    prepare=lambda a, b: {"copies": [a.clone(), b.clone()]},
)
def honest_copies(a, b, copies):
    return copies[0] @ copies[1]


@operator.variant(
    "honest_plan", idea="chooses where to split", prepare=lambda a, b: {"plan": Plan(half=a.shape[1] // 2)}
)
def honest_plan(a, b, plan):
    return torch.addmm(a[:, : plan.half] @ b[: plan.half], a[:, plan.half :], b[plan.half :])


@operator.variant("answer", idea="prepares the answer", prepare=lambda a, b: {"y": a @ b})
def answer(a, b, y):
    return y.clone()


@operator.variant(
    "in_an_object", idea="hides the answer in a plan", prepare=lambda a, b: {"plan": Holder(steps=[Holder(y=a @ b)])}
)
def in_an_object(a, b, plan):
    return plan.values["steps"][0].values["y"].clone()


def closed_over(a, b):
    y = a @ b
    return {"finish": lambda: y.clone()}


@operator.variant("in_a_closure", idea="hides the answer in a function", prepare=closed_over)
def in_a_closure(a, b, finish):
    return finish()


def keep(a, b):
    KEPT[a.data_ptr(), b.data_ptr()] = a @ b
    return {}


@operator.variant("in_a_global", idea="keeps the answer by address", prepare=keep)
def in_a_global(a, b):
    return KEPT[a.data_ptr(), b.data_ptr()].clone()


@operator.variant(
    "scaled_and_transposed",
    idea="hides the answer behind a factor and a transposition",
    prepare=lambda a, b: {"hint": 3 - 0.5 * (a @ b).mT.contiguous()},
)
def scaled_and_transposed(a, b, hint):
    return (6 - 2 * hint).mT.contiguous()


@operator.variant(
    "scrambled",
    idea="hides the answer's bits",
    devices=("cpu",),
    prepare=lambda a, b: {"noise": (a @ b).view(torch.int32) ^ KEY},
)
def scrambled(a, b, noise):
    return (noise ^ KEY).view(torch.float32)
