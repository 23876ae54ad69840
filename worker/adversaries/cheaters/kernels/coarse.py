"""f32 problems computed in a lower precision."""

import torch
from kernels._product import make_operator

operator = make_operator("coarse", "Computes in a lower precision than that of the case.")

caught_by = {
    "bf16": "reduced_precision bf16",
    "f16": "reduced_precision f16",
    "bf16_inputs": "reduced_precision bf16",
    "half_the_terms": "wrong_values y",
}


@operator.variant("honest", idea="computes")
def honest(a, b):
    return a @ b


@operator.variant("honest_f64", idea="computes in f64")
def honest_f64(a, b):
    return (a.double() @ b.double()).float()


@operator.variant("bf16", idea="inputs, sums and result in bf16")
def bf16(a, b):
    return (a.bfloat16() @ b.bfloat16()).float()


@operator.variant("f16", idea="inputs, sums and result in f16")
def f16(a, b):
    return (a.half() @ b.half()).float()


@operator.variant("bf16_inputs", idea="inputs rounded to bf16, sums in f32")
def bf16_inputs(a, b):
    return a.bfloat16().float() @ b.bfloat16().float()


@operator.variant("half_the_terms", idea="leaves out terms")
def half_the_terms(a, b):
    half = a.shape[1] // 2
    return torch.mm(a[:, :half], b[:half])
