"""Mutants of magnitude_prune."""

from __future__ import annotations

import torch
from torch import Tensor

from ..magnitude_prune import chosen, reference
from ..magnitude_prune import operator as shipped
from ._common import without_variants

operator = without_variants(shipped)

caught_by = {
    "ties_to_the_last": "wrong_values y[1]",
    "all_ties_kept": "wrong_values y[1]",
    "by_signed_size": "wrong_values y[0]",
    "one_too_few": "wrong_values y[1]",
    "gradient_everywhere": "wrong_values grad w",
}

Outputs = tuple[Tensor, Tensor]


@operator.variant("ties_to_the_last", idea="keeps the last of equal magnitudes and not the first")
def ties_to_the_last(w: Tensor, keep: int) -> Outputs:
    mask = reference(w.flatten().flip(0), keep)[1].flip(0)
    return chosen(w, mask)


@operator.variant("all_ties_kept", idea="keeps every element as large as the smallest kept")
def all_ties_kept(w: Tensor, keep: int) -> Outputs:
    size = w.detach().abs()
    smallest = size[reference(w, keep)[1]]
    return chosen(w, size >= smallest.min() if len(smallest) else torch.zeros_like(size, dtype=torch.bool))


@operator.variant("by_signed_size", idea="compares the numbers and not their magnitudes")
def by_signed_size(w: Tensor, keep: int) -> Outputs:
    mask = torch.zeros(w.numel(), dtype=torch.bool, device=w.device)
    mask[w.detach().flatten().sort(descending=True, stable=True).indices[:keep]] = True
    return chosen(w, mask)


@operator.variant("one_too_few", idea="keeps one element too few")
def one_too_few(w: Tensor, keep: int) -> Outputs:
    return reference(w, max(0, keep - 1))


@operator.variant("gradient_everywhere", idea="gives the elements that it pruned a gradient as well")
def gradient_everywhere(w: Tensor, keep: int) -> Outputs:
    pruned, mask = reference(w.detach(), keep)
    return pruned + (w - w.detach()), mask
