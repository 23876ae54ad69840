"""Mutants of concat."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..concat import operator as shipped
from ..concat import reference
from ._common import skew, without_variants

operator = without_variants(shipped)

caught_by = {
    "parts_reversed": "wrong_values y",
    "columns_of_the_part_before": "wrong_values y",
    "last_part_forgotten": "wrong_values y",
    "gradient_of_one_part": "wrong_values grad parts[0]",
}


@operator.variant("parts_reversed", idea="concatenates the parts in the opposite order")
def parts_reversed(parts: Sequence[Tensor], w: Tensor | None) -> Tensor:
    return reference(parts[::-1], w)


@operator.variant("columns_of_the_part_before", idea="begins every part's block of weights at the column before it")
def columns_of_the_part_before(parts: Sequence[Tensor], w: Tensor | None) -> Tensor:
    return reference(parts, w.roll(1, 1)) if w is not None else torch.cat(list(parts), dim=-1).roll(1, -1)


@operator.variant("last_part_forgotten", idea="leaves the last part's product out")
def last_part_forgotten(parts: Sequence[Tensor], w: Tensor | None) -> Tensor:
    return reference([*parts[:-1], torch.zeros_like(parts[-1])], w)


@operator.variant("gradient_of_one_part", idea="writes the gradient of the first part from its second column on")
def gradient_of_one_part(parts: Sequence[Tensor], w: Tensor | None) -> Tensor:
    return reference([skew(parts[0], lambda g: g.roll(1, -1)), *parts[1:]], w)
