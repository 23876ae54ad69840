"""Mutants of kv_attention: what goes wrong between pages, lengths, heads, scales and the softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..kv_attention import numbers_of, pages_of, reference
from ..kv_attention import operator as shipped
from ._common import without_variants

operator = without_variants(shipped)

caught_by = {
    "page_of_the_next_entry": "wrong_values y",
    "pages_of_the_next_sequence": "wrong_values y",
    "one_token_too_many": "wrong_values y",
    "one_token_too_few": "wrong_values y",
    "reads_whole_pages": "wrong_values y",
    "drops_the_last_page": "wrong_values y",
    "shares_every_other_head": "wrong_values y",
    "swaps_scales": "wrong_values y",
    "forgets_the_scale_of_keys": "wrong_values y",
    "scales_in_bf16": "wrong_values y",
    "forgets_the_factor": "wrong_values y",
    "softmax_without_the_maximum": "wrong_values y",
    "joins_parts_with_equal_weights": "wrong_values y",
    "forgets_to_shrink_earlier_sums": "wrong_values y",
    "sums_in_f16": "wrong_values y",
}


def with_inputs(name: str, idea: str, change: Callable[..., dict[str, Any]]) -> None:
    """A variant that computes right with other inputs."""

    @operator.variant(name, idea=idea)
    def _(**inputs: Any) -> Tensor:
        return reference(**{**inputs, **change(**inputs)})


def with_softmax(name: str, idea: str, attend: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A variant that weights values by scores in its own way: (scores (heads, tokens), values (tokens, d))."""

    @operator.variant(name, idea=idea)
    def _(
        q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
    ) -> Tensor:
        y = torch.empty_like(q)
        for b, length in enumerate(lengths.tolist()):
            keys = numbers_of(pages_of(k, table[b])[:length], k_scale)
            values = numbers_of(pages_of(v, table[b])[:length], v_scale)
            for head, queries in enumerate(q[b].double().chunk(k.shape[2])):
                scores = queries @ keys[:, head].mT / math.sqrt(q.shape[2])
                rows = slice(head * len(queries), (head + 1) * len(queries))
                y[b, rows] = attend(scores, values[:, head]).to(q.dtype)
        return y


def moved_lengths(by: int) -> Callable[..., dict[str, Any]]:
    def change(k: Tensor, table: Tensor, lengths: Tensor, **_: Any) -> dict[str, Any]:
        return {"lengths": (lengths + by).clamp(1, table.shape[1] * k.shape[1])}

    return change


def rounded_lengths(up: bool) -> Callable[..., dict[str, Any]]:
    def change(k: Tensor, lengths: Tensor, **_: Any) -> dict[str, Any]:
        page = k.shape[1]
        return {"lengths": (lengths + page - 1) // page * page if up else (lengths // page * page).clamp(min=1)}

    return change


def with_scales(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[..., dict[str, Any]]:
    def changed(k_scale: Tensor | None, v_scale: Tensor | None, **_: Any) -> dict[str, Any]:
        if k_scale is None or v_scale is None:
            return {}
        return dict(zip(("k_scale", "v_scale"), change(k_scale, v_scale), strict=True))

    return changed


def without_maximum(scores: Tensor, values: Tensor) -> Tensor:
    weights = scores.float().exp()
    return weights / weights.sum(1, keepdim=True) @ values.float()


def in_parts(scores: Tensor, values: Tensor) -> Tensor:
    """The mean of the results of two halves."""
    half = max(1, scores.shape[1] // 2)
    starts = range(0, scores.shape[1], half)
    parts = [scores[:, i : i + half].softmax(1) @ values[i : i + half] for i in starts]
    return torch.stack(parts).mean(0)


def without_shrinking(scores: Tensor, values: Tensor) -> Tensor:
    """Blocks of eight tokens, each of which takes off the largest score so far."""
    largest = torch.stack([scores[:, : i // 8 * 8 + 8].amax(1) for i in range(scores.shape[1])], 1)
    weights = (scores - largest).exp()
    return weights / weights.sum(1, keepdim=True) @ values


def in_f16(scores: Tensor, values: Tensor) -> Tensor:
    total = torch.zeros(scores.shape[0], values.shape[1], dtype=torch.float16)
    for weight, value in zip(scores.softmax(1).T, values, strict=True):
        total = (total + weight[:, None] * value).half()
    return total


with_inputs(
    "page_of_the_next_entry", "takes the page before in the table", lambda table, **_: {"table": table.roll(1, 1)}
)
with_inputs(
    "pages_of_the_next_sequence", "takes the row of the sequence before", lambda table, **_: {"table": table.roll(1, 0)}
)
with_inputs("one_token_too_many", "reads a token behind the end", moved_lengths(1))
with_inputs("one_token_too_few", "leaves out the last token", moved_lengths(-1))
with_inputs("reads_whole_pages", "reads the last page to its end", rounded_lengths(up=True))
with_inputs("drops_the_last_page", "leaves out a page that is not full", rounded_lengths(up=False))
with_inputs("swaps_scales", "takes each scale for the other", with_scales(lambda k, v: (v, k)))
with_inputs("forgets_the_scale_of_keys", "multiplies values alone", with_scales(lambda k, v: (torch.ones_like(k), v)))
with_inputs(
    "scales_in_bf16", "rounds scales to bf16", with_scales(lambda k, v: (k.bfloat16().float(), v.bfloat16().float()))
)
with_inputs("forgets_the_factor", "leaves out 1/√d", lambda q, **_: {"q": q * math.sqrt(q.shape[2])})
with_softmax("softmax_without_the_maximum", "exponentiates scores as they are", without_maximum)
with_softmax("joins_parts_with_equal_weights", "takes the mean of two halves of the tokens", in_parts)
with_softmax("forgets_to_shrink_earlier_sums", "keeps sums when a larger score comes", without_shrinking)
with_softmax("sums_in_f16", "keeps sums in f16", in_f16)


@operator.variant("shares_every_other_head", idea="head h reads head h % kv_heads of the cache")
def shares_every_other_head(q: Tensor, k: Tensor, **inputs: Any) -> Tensor:
    heads, kv_heads = q.shape[1], k.shape[2]
    turned = torch.arange(heads).view(-1, kv_heads).mT.flatten()
    return reference(q[:, turned], k, **inputs)[:, turned.argsort()]
