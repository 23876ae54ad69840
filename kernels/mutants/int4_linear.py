"""Mutants of int4_linear."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from warpwatch.quantization import decode, spread, unpack

from ..int4_linear import operator as shipped
from ._common import without_variants

operator = without_variants(shipped)

caught_by = {
    "swaps_nibbles": "wrong_values y",
    "reads_unsigned": "wrong_values y",
    "middle_at_seven": "wrong_values y",
    "clamps_minus_eight": "wrong_values y",
    "scale_of_the_next_group": "wrong_values y",
    "scale_of_the_next_row": "wrong_values y",
    "scale_in_bf16": "wrong_values y",
    "sums_in_f16": "wrong_values y",
    "forgets_the_last_group": "wrong_values y",
}


def same(tensor: Tensor) -> Tensor:
    return tensor


def exact(x: Tensor, weights: Tensor) -> Tensor:
    return x.double() @ weights.mT


def half(x: Tensor, weights: Tensor) -> Tensor:
    total = torch.zeros(len(x), len(weights), dtype=torch.float16)
    for k in range(0, x.shape[1], 8):
        total = (total + x[:, k : k + 8].double() @ weights[:, k : k + 8].mT).half()
    return total


def planted(
    name: str,
    idea: str,
    packed: Callable[[Tensor], Tensor] = same,
    codes: Callable[[Tensor], Tensor] = same,
    scales: Callable[[Tensor], Tensor] = same,
    product: Callable[[Tensor, Tensor], Tensor] = exact,
) -> None:
    """A variant with a fault in its bytes, its decoded codes, its scales or its sums."""

    @operator.variant(name, idea=idea)
    def _(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        numbers = codes(decode(unpack(packed(w)), "i4"))
        return product(x, numbers * spread(scales(scale), *numbers.shape)).to(x.dtype)


def without_last_group(scale: Tensor) -> Tensor:
    """Zeros for the last group of a row that has several."""
    groups = torch.arange(scale.shape[1])
    return torch.where((groups > 0) & (groups == len(groups) - 1), 0.0, scale)


planted("swaps_nibbles", "takes the high bits for the even column", packed=lambda w: (w >> 4) | (w << 4))
planted("reads_unsigned", "takes codes for 0 to 15", codes=lambda n: torch.where(n < 0, n + 16, n))
planted("middle_at_seven", "takes unsigned codes less 7", codes=lambda n: n + 1)
planted("clamps_minus_eight", "takes -8 for -7", codes=lambda n: n.clamp(min=-7))
planted("scale_of_the_next_group", "takes the scale of the group before", scales=lambda s: s.roll(1, 1))
planted("scale_of_the_next_row", "takes the scale of the row before", scales=lambda s: s.roll(1, 0))
planted("scale_in_bf16", "rounds scales to bf16", scales=lambda s: s.bfloat16().float())
planted("sums_in_f16", "keeps sums in f16", product=half)
planted("forgets_the_last_group", "leaves out the last group of a row", scales=without_last_group)
