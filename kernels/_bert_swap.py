"""Swaps the products of a Hugging Face BERT: every linear layer, and both products of attention, by our cublas_matmul.

Weights, names of parameters and the order of all other steps stay as they are.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

NAME = "warpwatch"
"""Under which transformers knows our attention."""


def product(a: Tensor, b: Tensor, transposed: bool) -> Tensor:
    """a · b, or a · bᵀ of each matrix: cuBLAS on a GPU, our blocked C++ on a CPU."""
    # torch.compile traces this attribute, and not torch.get_float32_matmul_precision, which says the same.
    c: Tensor = torch.ops.warpwatch.cublas_matmul(a, b, False, transposed, torch.backends.cuda.matmul.allow_tf32)
    return c


class SwappedLinear(nn.Linear):
    """A linear layer whose product is ours."""

    def forward(self, x: Tensor) -> Tensor:
        y = product(x.flatten(0, -2), self.weight, True).view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_options: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(Q Kᵀ · scaling + mask) V, and the weights, as transformers calls it: (batch, heads, rows, dim)."""
    scores = product(query, key, True) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.dropout(scores.softmax(-1), dropout, module.training)
    return product(weights, value, False).transpose(1, 2).contiguous(), weights


def swap(model: nn.Module) -> int:
    """Swaps the products of `model` in place; returns the number of linear layers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, eager_mask)
    # The caller may make other models of the same configuration, so this one gets a copy, shared as the original was.
    copies: dict[int, Any] = {}
    parts: list[Any] = [part for part in model.modules() if hasattr(part, "config")]
    for part in parts:
        part.config = copies.setdefault(id(part.config), copy.deepcopy(part.config))
        part.config._attn_implementation = NAME
    # Subclasses may compute something else, such as quantised layers.
    layers = [part for part in model.modules() if type(part) is nn.Linear]
    for layer in layers:
        layer.__class__ = SwappedLinear
    return len(layers)
