"""Mutants of launch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..launch import COPIES, reference
from ..launch import operator as shipped
from ._common import without_variants

operator = without_variants(shipped)

caught_by = {
    "adds_twice": "wrong_values y",
    "adds_in_place": "modified_input x",
    "copies_one_too_few": "wrong_values y",
    "copies_whole_vectors": "wrong_values y",
    "copies_one_operand_twice": "wrong_values y",
    "adds_in_place_on_the_host": "modified_input x",
}


@operator.variant("adds_twice", idea="launches the addition twice on one result")
def adds_twice(x: Tensor, way: str, device: torch.device, **operands: Tensor) -> Tensor:
    return x + 2 if way == "add" else reference(x, way, device, **operands)


@operator.variant("adds_in_place", idea="adds to its input")
def adds_in_place(x: Tensor, way: str, device: torch.device, **operands: Tensor) -> Tensor:
    return x.add_(1) if way == "add" else reference(x, way, device, **operands)


@operator.variant("copies_one_too_few", idea="leaves the last element of a copy unwritten")
def copies_one_too_few(x: Tensor, way: str, device: torch.device, **operands: Tensor) -> Tensor:
    y = reference(x, way, device, **operands)
    if way in COPIES:
        y[-1:] = 0
    return y


@operator.variant("copies_whole_vectors", idea="copies four elements at a time, and not what remains")
def copies_whole_vectors(x: Tensor, way: str, device: torch.device, **operands: Tensor) -> Tensor:
    y = reference(x, way, device, **operands)
    if way in COPIES:
        y[len(y) // 4 * 4 :] = 0
    return y


@operator.variant("copies_one_operand_twice", idea="copies the first operand of the program in place of the second")
def copies_one_operand_twice(x: Tensor, way: str, device: torch.device, **operands: Tensor) -> Tensor:
    return x + x if way == "add_from_host" else reference(x, way, device, **operands)


@operator.variant("adds_in_place_on_the_host", idea="copies the sum back over the first operand of the program")
def adds_in_place_on_the_host(x: Tensor, way: str, device: torch.device, **operands: Tensor) -> Tensor:
    return x.add_(operands["b"]) if way == "add_from_host" else reference(x, way, device, **operands)
