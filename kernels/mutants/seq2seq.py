"""Mutants of seq2seq."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import seq2seq
from .._recurrent import naive_cell
from ._common import without_variants

operator = without_variants(seq2seq.operator)

caught_by = {
    "source_backwards": "wrong_values y",
    "context_moves": "wrong_values y",
    "token_one_late": "wrong_values y",
    "second_likeliest_at_last": "wrong_values y",
}


def decode(
    source: Tensor,
    source_table: Tensor,
    target_table: Tensor,
    encoder: Sequence[Tensor],
    decoder: Sequence[Tensor],
    w_fc: Tensor,
    b_fc: Tensor,
    steps: int,
    *,
    context_moves: bool = False,
    delay: int = 0,
) -> Tensor:
    """The reference, with a context that follows the state, or with tokens that arrive steps late."""
    h = source_table.new_zeros(source.shape[1], encoder[1].shape[1])
    for step in source:
        h = naive_cell(source_table[step], h, *encoder)
    c, emitted = h, [torch.full_like(source[0], seq2seq.START)]
    for i in range(steps):
        e = target_table[emitted[max(0, i - delay)]]
        h = naive_cell(torch.cat([e, c], 1), h, *decoder)
        likeliest = (torch.cat([e, h, c], 1) @ w_fc.t() + b_fc).argmax(1)
        emitted.append(torch.where(emitted[i] == seq2seq.END, seq2seq.END, likeliest))
        c = h if context_moves else c
    return torch.stack(emitted[1:], 1)


@operator.variant("source_backwards", idea="reads the source from its end")
def source_backwards(source: Tensor, **given: Any) -> Tensor:
    return decode(source.flip(0), **given)


@operator.variant("context_moves", idea="takes the present state as the context of the next step")
def context_moves(**given: Any) -> Tensor:
    return decode(**given, context_moves=True)


@operator.variant("token_one_late", idea="decodes every step from the token before the last")
def token_one_late(**given: Any) -> Tensor:
    return decode(**given, delay=1)


@operator.variant("second_likeliest_at_last", idea="leaves the last word of the vocabulary out")
def second_likeliest_at_last(w_fc: Tensor, b_fc: Tensor, **given: Any) -> Tensor:
    # Without the second half there surely is a sentence that misses a word.
    half = w_fc.shape[0] // 2
    return decode(w_fc=w_fc[:half], b_fc=b_fc[:half], **given)
