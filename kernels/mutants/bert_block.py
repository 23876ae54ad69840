"""Mutants of bert_block."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import bert_block
from ._common import without_variants

operator = without_variants(bert_block.operator)

caught_by = {
    "heads_mixed": "wrong_values y",
    "not_scaled": "wrong_values y",
    "shift_before_gain": "wrong_values y",
    "keys_for_queries": "wrong_values y",
    "gain_without_gradient": "wrong_values grad gain",
}


@operator.variant("heads_mixed", idea="lets the queries of a head meet the keys of the next one")
def heads_mixed(**given: Any) -> Tensor:
    return bert_block.block(lambda q, k, v: bert_block.plainly(q, k.roll(1, 1), v), **given)


@operator.variant("not_scaled", idea="does not divide the scores by the root of the head's size")
def not_scaled(**given: Any) -> Tensor:
    return bert_block.block(lambda q, k, v: bert_block.plainly(q * math.sqrt(q.shape[3]), k, v), **given)


@operator.variant("shift_before_gain", idea="adds the shift of the layer norm before it multiplies by the gain")
def shift_before_gain(**given: Any) -> Tensor:
    return bert_block.reference(**given | {"shift": given["shift"] * given["gain"]})


@operator.variant("keys_for_queries", idea="projects the queries by the weights of the keys")
def keys_for_queries(**given: Any) -> Tensor:
    return bert_block.reference(**given | {"w_q": given["w_k"]} | {"w_k": given["w_q"]} | {"b_q": given["b_k"]})


@operator.variant("gain_without_gradient", idea="computes half of the gain's gradient: that of the first half of rows")
def gain_without_gradient(**given: Any) -> Tensor:
    whole = bert_block.reference(**given | {"gain": given["gain"].detach()})
    again = bert_block.reference(**given)
    first = torch.arange(whole.shape[1], device=whole.device)[:, None] < whole.shape[1] / 2
    return torch.where(first, again, whole)
