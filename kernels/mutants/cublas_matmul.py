"""Mutants of cublas_matmul."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cublas_matmul import operator as shipped
from ..cublas_matmul import reference
from ._common import without_variants

operator = without_variants(shipped)

caught_by = {
    "reshapes_to_transpose": "wrong_values y",
    "one_matrix_for_all": "wrong_values y",
    "loop_stops_early": "wrong_values y",
    "gradient_of_one_product": "wrong_values grad a",
}


@operator.variant("reshapes_to_transpose", idea="takes a transposed operand's memory for that of a plain one")
def reshapes_to_transpose(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    plain_b = b.reshape(*b.shape[:-2], b.shape[-1], b.shape[-2]) if trans_b else b
    return reference(a, plain_b, trans_a, False)


@operator.variant("one_matrix_for_all", idea="a stride of zero: multiplies every matrix of a batch by the first of b")
def one_matrix_for_all(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    return reference(a, b[:1].expand_as(b) if b.dim() > 2 else b, trans_a, trans_b)


@operator.variant("loop_stops_early", idea="computes all products of a batch but the last, which it repeats")
def loop_stops_early(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    y = reference(a, b, trans_a, trans_b)
    return torch.cat([y[:-1], y[:1]]) if y.dim() > 2 else y


@operator.variant("gradient_of_one_product", idea="does not sum the gradient of a matrix that stands for a whole batch")
def gradient_of_one_product(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    if a.dim() < b.dim():
        first = torch.arange(b.shape[0], device=b.device).view(-1, *[1] * (b.dim() - 1)) == 0
        a = torch.where(first, a, a.detach())
    return reference(a, b, trans_a, trans_b)
