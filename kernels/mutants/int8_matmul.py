"""Mutants of int8_matmul."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..int8_matmul import operator as shipped
from ..int8_matmul import scaled
from ._common import without_variants

operator = without_variants(shipped)

caught_by = {
    "sums_in_16_bits": "wrong_values y",
    "saturates_pairs": "wrong_values y",
    "sums_in_f16": "wrong_values y",
    "reads_unsigned": "wrong_values y",
    "scale_of_the_next_row": "wrong_values y",
    "one_scale_for_all_rows": "wrong_values y",
    "scale_in_bf16": "wrong_values y",
    "drops_the_last_columns": "wrong_values y",
}

Scale = Tensor | None
Product = Callable[[Tensor, Tensor], Tensor]


def exact(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() @ b.double().mT).to(torch.int32)


def of_pairs(a: Tensor, b: Tensor) -> Tensor:
    """Adds two products in 16 bits with saturation, as the instruction of x86 for bytes does."""
    total = torch.zeros(len(a), len(b), dtype=torch.int64)
    for k in range(0, a.shape[1], 2):
        pair = a[:, k : k + 2].long() @ b[:, k : k + 2].long().mT
        total += pair.clamp(-(1 << 14), (1 << 14) - 1)
    return total.to(torch.int32)


def half(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(len(a), len(b), dtype=torch.float16)
    for k in range(0, a.shape[1], 8):
        total = (total + a[:, k : k + 8].float() @ b[:, k : k + 8].float().mT).half()
    return total.float().nan_to_num(0.0, 65504.0, -65504.0).to(torch.int32)


def planted(
    name: str,
    idea: str,
    product: Product = exact,
    scales: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda a, b: (a, b),
) -> None:
    @operator.variant(name, idea=idea)
    def _(a: Tensor, b: Tensor, a_scale: Scale, b_scale: Scale, dtype: torch.dtype) -> Tensor:
        if a_scale is not None and b_scale is not None:
            a_scale, b_scale = scales(a_scale, b_scale)
        return scaled(product(a, b), a_scale, b_scale, dtype)


planted("sums_in_16_bits", "keeps the low 16 bits of a sum", lambda a, b: exact(a, b).to(torch.int16).to(torch.int32))
planted("saturates_pairs", "saturates the sum of two products", of_pairs)
planted("sums_in_f16", "keeps sums in f16", half)
planted("reads_unsigned", "takes the codes of A for unsigned", lambda a, b: exact(a.view(torch.uint8), b))
planted("scale_of_the_next_row", "takes the scale of the row before", scales=lambda a, b: (a.roll(1, 0), b))
planted("one_scale_for_all_rows", "takes one scale for all rows", scales=lambda a, b: (a.mean(0, keepdim=True), b))
planted("scale_in_bf16", "rounds scales to bf16", scales=lambda a, b: (a.bfloat16().float(), b))
planted(
    "drops_the_last_columns",
    "leaves out what lies beyond whole blocks of 32",
    lambda a, b: exact(a[:, : a.shape[1] // 32 * 32], b[:, : b.shape[1] // 32 * 32]),
)
