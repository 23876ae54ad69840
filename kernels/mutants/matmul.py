"""Mutants of matmul, the ladder of kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from ..matmul import operator as shipped
from ..matmul import reference
from ._common import skew, without_variants

operator = without_variants(shipped)

TILE = 64

caught_by = {
    "part_of_a_tile_left_out": "wrong_values y",
    "rows_of_the_last_tile_repeat": "wrong_values y",
    "buffer_not_switched": "wrong_values y",
    "gradient_of_whole_tiles": "wrong_values grad b",
}


@operator.variant("part_of_a_tile_left_out", idea="sums over whole tiles of the inner dimension alone")
def part_of_a_tile_left_out(a: Tensor, b: Tensor) -> Tensor:
    whole = a.shape[1] // TILE * TILE
    return reference(a[:, :whole], b[:whole])


@operator.variant("rows_of_the_last_tile_repeat", idea="writes the row before in place of an odd last one")
def rows_of_the_last_tile_repeat(a: Tensor, b: Tensor) -> Tensor:
    y = reference(a, b)
    return torch.cat([y[:-1], y[-2:-1]]) if len(y) % 2 and len(y) > 1 else y


@operator.variant("buffer_not_switched", idea="multiplies the second tile of a by the first tile of b")
def buffer_not_switched(a: Tensor, b: Tensor) -> Tensor:
    if a.shape[1] < 2 * TILE:
        return reference(a, b)
    return reference(a, torch.cat([b[:TILE], b[:TILE], b[2 * TILE :]]))


@operator.variant("gradient_of_whole_tiles", idea="leaves the gradient of b's last, partial tile zero")
def gradient_of_whole_tiles(a: Tensor, b: Tensor) -> Tensor:
    inside = (torch.arange(b.shape[0], device=b.device) < b.shape[0] // TILE * TILE)[:, None]
    return reference(a, skew(b, lambda g: g * inside))
