"""Work in a thread that only native code can see."""

import torch
from kernels._product import make_operator

operator = make_operator("detached", "Computes in a detached C++ thread.")

caught_by = {
    "detached": "unfinished y",
}


@operator.variant("honest", idea="computes in C++ before it returns", native=True, devices=("cpu",))
def honest(a, b):
    return torch.ops.detached.product(a, b, False)


@operator.variant("detached", idea="starts a thread and returns", native=True, devices=("cpu",))
def detached(a, b):
    return torch.ops.detached.product(a, b, True)
