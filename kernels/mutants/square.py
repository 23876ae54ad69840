"""Mutants of square."""

from __future__ import annotations

import torch
from torch import Tensor

from ..square import operator as shipped
from ._common import skew, without_variants

operator = without_variants(shipped)

caught_by = {
    "keeps_the_sign": "wrong_values y",
    "last_column_copied": "wrong_values y",
    "gradient_without_two": "wrong_values grad a",
    "gradient_without_a": "wrong_values grad a",
}


@operator.variant("keeps_the_sign", idea="multiplies by the magnitude")
def keeps_the_sign(a: Tensor) -> Tensor:
    return a * a.abs()


@operator.variant("last_column_copied", idea="copies the column that no whole tile holds")
def last_column_copied(a: Tensor) -> Tensor:
    whole = a.shape[1] // 16 * 16
    return torch.cat([a[:, :whole] ** 2, a[:, whole:]], 1)


@operator.variant("gradient_without_two", idea="takes a for the derivative of a squared")
def gradient_without_two(a: Tensor) -> Tensor:
    return a * a.detach()


@operator.variant("gradient_without_a", idea="takes two for the derivative of a squared")
def gradient_without_a(a: Tensor) -> Tensor:
    fixed = a.detach()
    return fixed * fixed + skew(a - fixed, lambda g: 2 * g)
