"""Mutants of bpe_train."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .. import bpe_train
from ..bpe_train import BORDER, bordered, most_frequent
from ._common import without_variants

operator = without_variants(bpe_train.operator)

caught_by = {
    "ties_to_the_larger": "wrong_values y",
    "across_strings": "wrong_values y",
    "counts_once": "wrong_values y",
    "one_merge_short": "wrong_values y",
}

Pick = Callable[[Tensor, int], tuple[int, int] | None]


def train(symbols: Tensor, offsets: Tensor, merges: int, pick: Pick) -> Tensor:
    """The reference, with another choice of the next pair."""
    alphabet, tokens = bordered(symbols, offsets)
    pairs = torch.full((merges, 2), -1, dtype=torch.int32, device=symbols.device)
    for i in range(merges):
        pair = pick(tokens, alphabet + i)
        if pair is None:
            break
        tokens = bpe_train.merge(tokens, pair, alphabet + i)
        pairs[i] = torch.tensor(pair)
    return pairs


def largest_of_ties(tokens: Tensor, size: int) -> tuple[int, int] | None:
    left, right = tokens[:-1], tokens[1:]
    inside = (left != BORDER) & (right != BORDER)
    counts = torch.bincount((left * size + right)[inside], minlength=1)
    best = counts.max()
    return None if best == 0 else divmod(int((counts == best).nonzero()[-1]), size)


@operator.variant("ties_to_the_larger", idea="takes the larger of equally frequent pairs")
def ties_to_the_larger(symbols: Tensor, offsets: Tensor, merges: int) -> Tensor:
    return train(symbols, offsets, merges, largest_of_ties)


@operator.variant("across_strings", idea="counts pairs that span two strings")
def across_strings(symbols: Tensor, offsets: Tensor, merges: int) -> Tensor:
    return bpe_train.reference(symbols, offsets[[0, -1]], merges)


@operator.variant("counts_once", idea="does not count a merged pair's new neighbours")
def counts_once(symbols: Tensor, offsets: Tensor, merges: int) -> Tensor:
    alphabet = bordered(symbols, offsets)[0]

    def pick(tokens: Tensor, size: int) -> tuple[int, int] | None:
        return most_frequent(torch.where(tokens < alphabet, tokens, BORDER), size)

    return train(symbols, offsets, merges, pick)


@operator.variant("one_merge_short", idea="leaves out the last merge")
def one_merge_short(symbols: Tensor, offsets: Tensor, merges: int) -> Tensor:
    pairs = bpe_train.reference(symbols, offsets, merges)
    pairs[-1:] = -1
    return pairs
