"""Mutants of kron."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kron import operator as shipped
from ..kron import reference, unpack
from ._common import exchange, skew, without_variants

operator = without_variants(shipped)

caught_by = {
    "weights_transposed": "wrong_values y",
    "layers_exchanged": "wrong_values y",
    "axes_exchanged": "wrong_values y",
    "last_factor_once": "wrong_values y",
    "gradients_exchanged": "wrong_values grad w1",
    "gradient_of_the_first_row": "wrong_values grad x",
}

Factors = tuple[int, ...]


def packed(weights: list[Tensor]) -> Tensor:
    return torch.cat([weight.flatten() for weight in weights])


@operator.variant("weights_transposed", idea="takes the weights as [out, in]")
def weights_transposed(x: Tensor, w1: Tensor, w2: Tensor, factors: Factors) -> Tensor:
    first, second = (packed([weight.mT for weight in unpack(w, factors)]) for w in (w1, w2))
    return reference(x, first, second, factors)


@operator.variant("layers_exchanged", idea="applies the second layer first")
def layers_exchanged(x: Tensor, w1: Tensor, w2: Tensor, factors: Factors) -> Tensor:
    return reference(x, w2, w1, factors)


@operator.variant("axes_exchanged", idea="applies the factors in the opposite order of axes where their sizes allow it")
def axes_exchanged(x: Tensor, w1: Tensor, w2: Tensor, factors: Factors) -> Tensor:
    if factors != factors[::-1]:
        return reference(x, w1, w2, factors)
    first, second = (packed(unpack(w, factors)[::-1]) for w in (w1, w2))
    return reference(x, first, second, factors)


@operator.variant("last_factor_once", idea="leaves the last factor out of the second layer")
def last_factor_once(x: Tensor, w1: Tensor, w2: Tensor, factors: Factors) -> Tensor:
    weights = unpack(w2, factors)
    return reference(x, w1, packed([*weights[:-1], torch.eye(factors[-1]).to(w2)]), factors)


@operator.variant("gradients_exchanged", idea="returns the gradient of either layer's weights as that of the other's")
def gradients_exchanged(x: Tensor, w1: Tensor, w2: Tensor, factors: Factors) -> Tensor:
    return reference(x, *exchange(w1, w2), factors)


@operator.variant("gradient_of_the_first_row", idea="computes the gradient of x one row of the batch too late")
def gradient_of_the_first_row(x: Tensor, w1: Tensor, w2: Tensor, factors: Factors) -> Tensor:
    return reference(skew(x, lambda g: g.roll(1, 0)), w1, w2, factors)
