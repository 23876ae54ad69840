"""Mutants of causal_conv."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import causal_conv
from ._common import skew, without_variants

operator = without_variants(causal_conv.operator)

caught_by = {
    "filter_reversed": "wrong_values y",
    "one_late": "wrong_values y",
    "wraps_around": "wrong_values y",
    "eps_of_one_row": "wrong_values grad eps",
    "gradient_looks_back": "wrong_values grad k",
}


@operator.variant("filter_reversed", idea="weights the present element by the first tap and not by the last")
def filter_reversed(k: Tensor, w: Tensor, eps: Tensor) -> Tensor:
    return causal_conv.reference(k, w.flip(1), eps)


@operator.variant("one_late", idea="weights every element by the tap of the one before it")
def one_late(k: Tensor, w: Tensor, eps: Tensor) -> Tensor:
    return causal_conv.reference(torch.nn.functional.pad(k, (1, 0))[..., :-1], w, eps)


@operator.variant(
    "wraps_around", idea="continues a row that has ended at its other end, as a transform without padding does"
)
def wraps_around(k: Tensor, w: Tensor, eps: Tensor) -> Tensor:
    length, y = k.shape[2], eps.expand(k.shape)
    for d in range(length):
        y = y + w[:, length - 1 - d, None] * k.roll(d, 2)
    return y


@operator.variant("eps_of_one_row", idea="sums the gradient of eps over the first row of the batch alone")
def eps_of_one_row(k: Tensor, w: Tensor, eps: Tensor) -> Tensor:
    y = causal_conv.reference(k, w, eps.detach())
    return torch.cat([y[:1] + (eps - eps.detach()), y[1:]])


@operator.variant("gradient_looks_back", idea="runs the gradient of k through time in the forward direction")
def gradient_looks_back(k: Tensor, w: Tensor, eps: Tensor) -> Any:
    return causal_conv.reference(skew(k, lambda g: g.flip(2)), w, eps)
