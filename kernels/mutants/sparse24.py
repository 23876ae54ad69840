"""Mutants of sparse24."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..sparse24 import operator as shipped
from ..sparse24 import pruned_by_sorting, reference, straight_through
from ._common import without_variants

operator = without_variants(shipped)

caught_by = {
    "keeps_the_smallest": "wrong_values y",
    "groups_one_off": "wrong_values y",
    "by_signed_size": "wrong_values y",
    "pruned_never_come_back": "wrong_values grad w",
    "dense_gradient_of_x": "wrong_values grad x",
}


def by_rank(w: Tensor, size: Tensor, *, smallest: bool = False) -> Tensor:
    """Each group's two elements of the largest, or smallest, `size`."""
    groups, sizes = w.reshape(w.shape[0], -1, 4), size.reshape(w.shape[0], -1, 4)
    places = sizes.sort(dim=-1, descending=not smallest, stable=True).indices[..., :2]
    mask = torch.zeros_like(groups, dtype=torch.bool).scatter_(-1, places, True)
    return torch.where(mask, groups, 0.0).reshape(w.shape)


@operator.variant("keeps_the_smallest", idea="keeps the two smallest of each group")
def keeps_the_smallest(x: Tensor, w: Tensor, train: bool) -> Tensor:
    return F.linear(x, straight_through(w, lambda w: by_rank(w, w.abs(), smallest=True)))


@operator.variant("groups_one_off", idea="begins its groups of four one element late")
def groups_one_off(x: Tensor, w: Tensor, train: bool) -> Tensor:
    return F.linear(x, straight_through(w, lambda w: pruned_by_sorting(w.roll(-1, 1)).roll(1, 1)))


@operator.variant("by_signed_size", idea="compares the numbers and not their magnitudes")
def by_signed_size(x: Tensor, w: Tensor, train: bool) -> Tensor:
    return F.linear(x, straight_through(w, lambda w: by_rank(w, w)))


@operator.variant("pruned_never_come_back", idea="masks the gradient of the weights as well")
def pruned_never_come_back(x: Tensor, w: Tensor, train: bool) -> Tensor:
    return F.linear(x, pruned_by_sorting(w))


@operator.variant("dense_gradient_of_x", idea="multiplies the gradient of x by the weights before pruning")
def dense_gradient_of_x(x: Tensor, w: Tensor, train: bool) -> Tensor:
    y, dense = reference(x.detach(), w, train), F.linear(x, w.detach())
    return y + (dense - dense.detach())
