"""Mutants of grouped_matmul: what goes wrong between groups, experts, scales and sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..grouped_matmul import numbers_of
from ..grouped_matmul import operator as shipped
from ._common import without_variants
from .scaled_matmul import summed_in, without_nan

operator = without_variants(shipped)

caught_by = {
    "weights_of_the_next_expert": "wrong_values y",
    "empty_group_shifts_the_rest": "wrong_values y",
    "group_begins_a_row_late": "wrong_values y",
    "group_ends_a_row_late": "wrong_values y",
    "drops_rows_beyond_whole_tiles": "wrong_values y",
    "scale_of_the_next_token": "wrong_values y",
    "scale_of_the_next_expert": "wrong_values y",
    "scale_of_the_next_row": "wrong_values y",
    "scale_of_the_next_block": "wrong_values y",
    "scale_in_bf16": "wrong_values y",
    "reads_nan_as_480": "probe special values",
    "sums_in_f16": "wrong_values y",
    "sums_in_bf16": "wrong_values y",
}

Groups = Iterable[tuple[int, int, int]]
"""(expert, first row, last row but one)."""
Change = Callable[[Tensor], Tensor]


def same(scale: Tensor) -> Tensor:
    return scale


def read(codes: Tensor, scale: Tensor | None) -> Tensor:
    return numbers_of(codes, scale)


def exact(bounds: list[int]) -> Groups:
    return [(expert, bounds[expert], bounds[expert + 1]) for expert in range(len(bounds) - 1)]


def planted(
    name: str,
    idea: str,
    groups: Callable[[list[int]], Groups] = exact,
    x_scales: Change = same,
    w_scales: Change = same,
    numbers: Callable[[Tensor, Tensor | None], Tensor] = read,
    multiply: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
) -> None:
    """A variant with a fault in its groups, its scales, its numbers of x or its sums."""

    @operator.variant(name, idea=idea)
    def _(
        x: Tensor, w: Tensor, ends: Tensor, x_scale: Tensor | None, w_scale: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        rows = numbers(x, None if x_scale is None else x_scales(x_scale))
        weights = numbers_of(w, None if w_scale is None else w_scales(w_scale))
        y = torch.zeros(x.shape[0], w.shape[1], dtype=dtype)
        for expert, start, end in groups([0, *ends.tolist()]):
            y[start:end] = multiply(rows[start:end], weights[expert].mT).to(dtype)
        return y


def next_expert(bounds: list[int]) -> Groups:
    experts = len(bounds) - 1
    return [((expert + 1) % experts, start, end) for expert, start, end in exact(bounds)]


def without_empty(bounds: list[int]) -> Groups:
    busy = [(start, end) for _, start, end in exact(bounds) if end > start]
    return [(expert, *rows) for expert, rows in enumerate(busy)]


def late(bounds: list[int]) -> Groups:
    """Every group but the first begins, and every one but the last ends, a row late."""
    return exact([bounds[0], *(min(bound + 1, bounds[-1]) for bound in bounds[1:-1]), bounds[-1]])


def longer(bounds: list[int]) -> Groups:
    """A group that comes later is written before, so that the row behind a group has the expert before."""
    return reversed([(expert, start, min(end + 1, bounds[-1])) for expert, start, end in exact(bounds) if end > start])


def whole_tiles(bounds: list[int]) -> Groups:
    return [(expert, start, start + (end - start) // 16 * 16) for expert, start, end in exact(bounds)]


def read_nan_as_480(codes: Tensor, scale: Tensor | None) -> Tensor:
    return numbers_of(codes, None) if scale is None else without_nan(codes, scale)


planted("weights_of_the_next_expert", "takes the weights of the next expert", next_expert)
planted("empty_group_shifts_the_rest", "counts experts that have tokens alone", without_empty)
planted("group_begins_a_row_late", "moves the bounds between groups by a row", late)
planted("group_ends_a_row_late", "writes a row of the next group as well", longer)
planted("drops_rows_beyond_whole_tiles", "leaves out rows of a group beyond whole tiles of 16", whole_tiles)
planted("scale_of_the_next_token", "takes the scales of the token before", x_scales=lambda s: s.roll(1, 0))
planted("scale_of_the_next_expert", "takes the scales of the expert before", w_scales=lambda s: s.roll(1, 0))
planted("scale_of_the_next_row", "takes the scale of the row of W before", w_scales=lambda s: s.roll(1, 1))
planted("scale_of_the_next_block", "takes the scale of the block of x before", x_scales=lambda s: s.roll(1, 1))
planted("scale_in_bf16", "rounds scales of x to bf16", x_scales=lambda s: s.bfloat16().float())
planted("reads_nan_as_480", "reads the code of NaN as a number", numbers=read_nan_as_480)
planted("sums_in_f16", "keeps sums in f16", multiply=summed_in(torch.float16))
planted("sums_in_bf16", "keeps sums in bf16", multiply=summed_in(torch.bfloat16))
