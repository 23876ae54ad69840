"""Mutants of stencil1d."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..stencil1d import RADIUS, reference
from ..stencil1d import operator as shipped
from ._common import without_variants

operator = without_variants(shipped)

BLOCK = 256

caught_by = {
    "ends_repeat": "wrong_values y",
    "one_to_the_right": "wrong_values y",
    "halo_one_short": "wrong_values y",
    "gradient_not_mirrored": "wrong_values grad x",
}


@operator.variant("ends_repeat", idea="repeats the first and the last number beyond the ends, where zeros are right")
def ends_repeat(x: Tensor, w: Tensor) -> Tensor:
    y = reference(x, w)
    if not x.numel():
        return y
    padded = F.pad(x[None], (RADIUS, RADIUS), mode="replicate")[0]
    return reference(padded, w)[RADIUS:-RADIUS]


@operator.variant("one_to_the_right", idea="centres its taps on the next number")
def one_to_the_right(x: Tensor, w: Tensor) -> Tensor:
    return reference(x.roll(-1), w)


@operator.variant("halo_one_short", idea="counts the outermost number of every block's halo as zero")
def halo_one_short(x: Tensor, w: Tensor) -> Tensor:
    y = reference(x, w).clone()
    # The first output of a block reaches three numbers into the block before it.
    y[BLOCK::BLOCK] = y[BLOCK::BLOCK] - w[0] * x[BLOCK - RADIUS :: BLOCK][: len(y[BLOCK::BLOCK])]
    return y


@operator.variant("gradient_not_mirrored", idea="runs the gradient through the taps in the order of the forward pass")
def gradient_not_mirrored(x: Tensor, w: Tensor) -> Tensor:
    y = reference(x.detach(), w)
    mirrored = reference(x, w.detach().flip(0))
    return y + (mirrored - mirrored.detach())
