"""Mutants of spmm."""

from __future__ import annotations

import torch
from torch import Tensor

from ..spmm import operator as shipped
from ..spmm import reference, rows_of
from ._common import skew, without_variants

operator = without_variants(shipped)

caught_by = {
    "last_entry_of_a_row_left_out": "wrong_values y",
    "next_column": "wrong_values y",
    "rows_begin_late": "wrong_values y",
    "gradient_of_one_column": "wrong_values grad values",
    "gradient_without_pattern": "wrong_values grad b",
}


@operator.variant("last_entry_of_a_row_left_out", idea="ends every row one entry early")
def last_entry_of_a_row_left_out(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> Tensor:
    last = torch.zeros(values.numel() + 1, dtype=torch.bool, device=values.device)
    last[crow[1:].long() - 1] = True
    return reference(crow, col, torch.where(last[:-1], 0, values), b)


@operator.variant("next_column", idea="reads the row of b after the right one")
def next_column(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> Tensor:
    return reference(crow, col, values, b.roll(-1, 0))


@operator.variant("rows_begin_late", idea="counts the first entry of a row as the last one of the row before")
def rows_begin_late(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> Tensor:
    later = (crow + 1).clamp(max=int(crow[-1]))
    later[0] = 0
    return reference(later, col, values, b)


@operator.variant("gradient_of_one_column", idea="leaves the last column of b out of the gradient of the values")
def gradient_of_one_column(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> Tensor:
    y, fixed = reference(crow, col, values, b), reference(crow, col, values.detach(), b)
    return torch.cat([y[:, :-1], fixed[:, -1:]], 1)


@operator.variant("gradient_without_pattern", idea="gives rows of b that no entry of the last row meets no gradient")
def gradient_without_pattern(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> Tensor:
    met = torch.zeros(b.shape[0], dtype=torch.bool, device=b.device)
    met[col[rows_of(crow, col) == crow.numel() - 2].long()] = True
    return reference(crow, col, values, skew(b, lambda g: torch.where(met[:, None], g, g.roll(1, 0))))
