"""Mutants of embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..embedding import operator as shipped
from ..embedding import reference
from ._common import without_variants

operator = without_variants(shipped)

caught_by = {
    "next_row": "wrong_values y",
    "padding_is_zero": "wrong_values y",
    "padding_learns": "wrong_values grad weight",
    "last_gradient_wins": "wrong_values grad weight",
}


@operator.variant("next_row", idea="counts the rows of the table from one")
def next_row(weight: Tensor, indices: Tensor, padding: int | None = None) -> Tensor:
    return reference(weight.roll(-1, 0), indices, padding)


@operator.variant("padding_is_zero", idea="writes zeros for the padding, whose row only has no gradient")
def padding_is_zero(weight: Tensor, indices: Tensor, padding: int | None = None) -> Tensor:
    out = reference(weight, indices, padding)
    return out if padding is None else out.masked_fill((indices == padding)[..., None], 0)


@operator.variant("padding_learns", idea="gives the padding's row a gradient")
def padding_learns(weight: Tensor, indices: Tensor, padding: int | None = None) -> Tensor:
    return reference(weight, indices)


@operator.variant("last_gradient_wins", idea="overwrites the gradient of a row that occurs twice, and does not add")
def last_gradient_wins(weight: Tensor, indices: Tensor, padding: int | None = None) -> Tensor:
    out: Tensor = _Overwrite.apply(weight, indices.long(), padding)  # type: ignore[no-untyped-call]
    return out


class _Overwrite(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.rows, ctx.padding = weight.shape[0], padding
        return weight[indices]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (indices,) = ctx.saved_tensors
        total = gradients[0].new_zeros(ctx.rows, gradients[0].shape[-1])
        total[indices] = gradients[0]
        if ctx.padding is not None:
            total[ctx.padding] = 0
        return total, None, None
