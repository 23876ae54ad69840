"""Mutants of sparse24_step."""

from __future__ import annotations

from torch import Tensor

from .. import sparse24, sparse24_step
from ..sparse24_step import RATE, Outputs, step, transposable
from ._common import without_variants

operator = without_variants(sparse24_step.operator)

caught_by = {
    "pruned_along_rows_alone": "wrong_values y[0]",
    "masks_a_block_late": "wrong_values y[0]",
    "gradient_of_the_dense_weights": "wrong_values y[1]",
    "pruned_weights_stay_pruned": "wrong_values y[2]",
    "order_ignored": "wrong_form y[0]",
}


@operator.variant("pruned_along_rows_alone", idea="keeps two of four in every row, and not in every column")
def pruned_along_rows_alone(x: Tensor, w: Tensor, g: Tensor, across: bool) -> Outputs:
    return step(x, w, g, across, sparse24.pruned_by_comparing(w))


@operator.variant("masks_a_block_late", idea="prunes every block by the mask of the block beside it")
def masks_a_block_late(x: Tensor, w: Tensor, g: Tensor, across: bool) -> Outputs:
    return step(x, w, g, across, w * transposable(w).roll(4, 1))


@operator.variant("gradient_of_the_dense_weights", idea="multiplies the gradient of y by W as it was before pruning")
def gradient_of_the_dense_weights(x: Tensor, w: Tensor, g: Tensor, across: bool) -> Outputs:
    y, _, moved = step(x, w, g, across, w * transposable(w))
    return y, g @ w, moved


@operator.variant("pruned_weights_stay_pruned", idea="moves the weights alone that are kept")
def pruned_weights_stay_pruned(x: Tensor, w: Tensor, g: Tensor, across: bool) -> Outputs:
    mask = transposable(w)
    y, dx, _ = step(x, w, g, across, w * mask)
    return y, dx, w - RATE * (g.mT @ x) * mask


@operator.variant("order_ignored", idea="returns y with a row per token, whatever order is asked for")
def order_ignored(x: Tensor, w: Tensor, g: Tensor, across: bool) -> Outputs:
    return step(x, w, g, False, w * transposable(w))
