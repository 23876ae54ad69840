"""Mutants of linear_vocab."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..linear_vocab import operator as shipped
from ..linear_vocab import reference
from ._common import skew, without_variants

operator = without_variants(shipped)

caught_by = {
    "even_vocabulary": "wrong_values y",
    "part_forgotten": "wrong_values y",
    "bias_of_the_next_word": "wrong_values y",
    "mean_of_the_rows": "wrong_values grad b",
}


@operator.variant("even_vocabulary", idea="computes outputs in pairs, and repeats the one before for an odd last one")
def even_vocabulary(**given: Any) -> Tensor:
    y = reference(**given)
    return torch.cat([y[:, :-1], y[:, -2:-1]], 1) if y.shape[1] % 2 else y


@operator.variant("part_forgotten", idea="leaves the last part's product out")
def part_forgotten(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...]) -> Tensor:
    depth = sum(parts[:-1])
    return x[:, :depth] @ w[:, :depth].t() + b


@operator.variant("bias_of_the_next_word", idea="adds the bias of the next output")
def bias_of_the_next_word(b: Tensor, **given: Any) -> Tensor:
    return reference(b=b.roll(-1), **given)


@operator.variant("mean_of_the_rows", idea="takes the mean of the rows for the gradient of the bias and not their sum")
def mean_of_the_rows(x: Tensor, b: Tensor, **given: Any) -> Tensor:
    return reference(x, b=skew(b, lambda g: g / max(1, x.shape[0])), **given)
