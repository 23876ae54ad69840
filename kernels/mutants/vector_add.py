"""Mutants of vector_add."""

from __future__ import annotations

import torch
from torch import Tensor

from ..vector_add import operator as shipped
from ._common import skew, without_variants

operator = without_variants(shipped)

caught_by = {
    "subtracts": "wrong_values y",
    "last_element_of_b_forgotten": "wrong_values y",
    "one_off": "wrong_values y",
    "gradient_of_b_forgotten": "wrong_values grad b",
}


@operator.variant("subtracts", idea="subtracts b")
def subtracts(a: Tensor, b: Tensor, device: torch.device | None = None) -> Tensor:
    return a - b


@operator.variant("last_element_of_b_forgotten", idea="copies a where no whole vector of four remains")
def last_element_of_b_forgotten(a: Tensor, b: Tensor, device: torch.device | None = None) -> Tensor:
    whole = len(a) // 4 * 4
    return torch.cat([a[:whole] + b[:whole], a[whole:]])


@operator.variant("one_off", idea="reads the element of b after the right one")
def one_off(a: Tensor, b: Tensor, device: torch.device | None = None) -> Tensor:
    return a + b.roll(-1)


@operator.variant("gradient_of_b_forgotten", idea="returns zeros as the gradient of b")
def gradient_of_b_forgotten(a: Tensor, b: Tensor, device: torch.device | None = None) -> Tensor:
    return a + skew(b, torch.zeros_like)
