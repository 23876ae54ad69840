"""Mutants of bert_layer."""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from .. import bert_layer
from ..bert_layer import plain_attention, through
from ._common import without_variants

operator = without_variants(bert_layer.operator)

caught_by = {
    "padding_unmasked": "wrong_values y",
    "mask_adds_one": "wrong_values y",
    "last_bias_left_out": "wrong_values y",
    "norms_exchanged": "wrong_values y",
    "pruned_weights_grow": "wrong_values grad weights.intermediate.dense.weight",
}


@operator.variant("padding_unmasked", idea="attends to padded tokens")
def padding_unmasked(**given: Any) -> Tensor:
    return through(lambda q, k, v, keep: plain_attention(q, k, v, keep | True), F.linear)(**given)


@operator.variant("mask_adds_one", idea="adds 1 to the scores of tokens that are kept, and nothing to padded ones")
def mask_adds_one(**given: Any) -> Tensor:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return (q @ k.mT / math.sqrt(q.shape[3]) + keep).softmax(3) @ v

    return through(attend, F.linear)(**given)


@operator.variant("last_bias_left_out", idea="leaves out the last bias")
def last_bias_left_out(**given: Any) -> Tensor:
    name = f"{bert_layer.DOWN}.bias"
    return bert_layer.reference(**given | {"weights": given["weights"] | {name: 0 * given["weights"][name]}})


@operator.variant("norms_exchanged", idea="multiplies by the gains of the other layer norm")
def norms_exchanged(**given: Any) -> Tensor:
    first, second = bert_layer.NORMS
    weights = given["weights"]
    exchanged = weights | {
        f"{first}.weight": weights[f"{second}.weight"],
        f"{second}.weight": weights[f"{first}.weight"],
    }
    return bert_layer.reference(**given | {"weights": exchanged})


@operator.variant("pruned_weights_grow", idea="gives pruned weights the gradient of a dense matrix")
def pruned_weights_grow(**given: Any) -> Tensor:
    return bert_layer.reference(**given | {"patterns": {}})
