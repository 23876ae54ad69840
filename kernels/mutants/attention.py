"""Mutants of attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import attention
from ._common import exchange, without_variants

operator = without_variants(attention.operator)

caught_by = {
    "mask_one_late": "wrong_values y",
    "scaled_by_keys": "wrong_values y",
    "softmax_over_queries": "wrong_values y",
    "gradients_exchanged": "wrong_values grad q",
}


@operator.variant("mask_one_late", idea="lets every query see one key too many")
def mask_one_late(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[3])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(2), -math.inf)
    return scores.softmax(3) @ v


@operator.variant("scaled_by_keys", idea="divides by the root of the number of keys and not of the head's size")
def scaled_by_keys(q: Tensor, **given: Any) -> Tensor:
    return attention.reference(q * math.sqrt(q.shape[3] / given["k"].shape[2]), **given)


@operator.variant("softmax_over_queries", idea="normalises the scores over the queries and not over the keys")
def softmax_over_queries(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[3])
    if causal:
        scores = scores.masked_fill(attention.hidden(scores), -math.inf)
    return scores.softmax(2).nan_to_num() @ v


@operator.variant("gradients_exchanged", idea="returns the gradient of k as that of q where their shapes agree")
def gradients_exchanged(q: Tensor, k: Tensor, **given: Any) -> Tensor:
    q, k = exchange(q, k) if q.shape == k.shape else (q, k)
    return attention.reference(q, k, **given)
