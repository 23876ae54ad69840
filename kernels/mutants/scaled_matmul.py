"""Mutants of scaled_matmul: what goes wrong between codes, scales and sums."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from warpwatch.quantization import decode, spread, unpack

from ..scaled_matmul import Scale, numbers_of
from ..scaled_matmul import operator as shipped
from ._common import without_variants

operator = without_variants(shipped)

caught_by = {
    "scale_of_the_next_row": "wrong_values y",
    "scale_of_the_next_block": "wrong_values y",
    "scale_in_bf16": "wrong_values y",
    "wrong_bias": "wrong_values y",
    "swaps_nibbles": "wrong_values y",
    "flushes_denormals": "wrong_values y",
    "reads_nan_as_480": "probe special values",
    "sums_in_f16": "wrong_values y",
    "sums_in_bf16": "wrong_values y",
    "drops_the_last_block": "wrong_values y",
    "forgets_the_tensor_scale": "wrong_values y",
}

Read = Callable[[Tensor, Scale], Tensor]


def numbers(codes: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The numbers of the codes without scales, changed."""
    if codes.dtype == torch.uint8:
        return decode(change(unpack(codes)), "e2m1")
    return change(decode(codes, "e5m2" if codes.dtype == torch.float8_e5m2 else "e4m3"))


def scales(scale: Scale, rows: int, columns: int) -> Tensor:
    """The scale of every element, that of the tensor included."""
    blocks, tensor = scale if isinstance(scale, tuple) else (scale, torch.ones(()))
    name = str(blocks.dtype).removeprefix("torch.float8_")[:4]
    return spread(decode(blocks, name), rows, columns) * tensor.double()


def planted(name: str, idea: str, read: Read, multiply: Callable[[Tensor, Tensor], Tensor] = torch.matmul) -> None:
    """A variant that reads A with `read`, and everything else as it should."""

    @operator.variant(name, idea=idea)
    def _(a: Tensor, b: Tensor, a_scale: Scale, b_scale: Scale, dtype: torch.dtype) -> Tensor:
        return multiply(read(a, a_scale), numbers_of(b, b_scale).mT).to(dtype)


def moved(axis: int) -> Read:
    def read(codes: Tensor, scale: Scale) -> Tensor:
        if not isinstance(scale, Tensor) or scale.shape[axis] < 2:
            return numbers_of(codes, scale)
        # torch selects rows of no dtype of eight bits.
        plain = scale.view(torch.uint8) if scale.element_size() == 1 else scale
        return numbers_of(codes, plain.roll(1, axis).view(scale.dtype))

    return read


def coarse(codes: Tensor, scale: Scale) -> Tensor:
    return numbers_of(codes, scale.bfloat16().float() if isinstance(scale, Tensor) else scale)


def without_denormals(codes: Tensor, scale: Scale) -> Tensor:
    if codes.dtype == torch.uint8:
        return numbers_of(codes, scale)
    smallest = 2.0**-14 if codes.dtype == torch.float8_e5m2 else 2.0**-6
    value = numbers(codes, lambda n: torch.where(n.abs() < smallest, 0.0, n))
    return value * scales(scale, *value.shape)


def half_bias(codes: Tensor, scale: Scale) -> Tensor:
    """Takes 8 for the bias of e4m3, so that normal numbers are half as large and denormals are not."""
    if codes.dtype != torch.float8_e4m3fn:
        return numbers_of(codes, scale)
    value = numbers(codes, lambda n: torch.where(n.abs() < 2.0**-6, n, n / 2))
    return value * scales(scale, *value.shape)


def swapped(codes: Tensor, scale: Scale) -> Tensor:
    return numbers_of((codes >> 4) | (codes << 4) if codes.dtype == torch.uint8 else codes, scale)


def without_nan(codes: Tensor, scale: Scale) -> Tensor:
    if codes.dtype == torch.uint8:
        return numbers_of(codes, scale)
    value = numbers(codes, lambda n: n.nan_to_num(480.0))
    return value * scales(scale, *value.shape)


def without_tensor_scale(codes: Tensor, scale: Scale) -> Tensor:
    return numbers_of(codes, scale[0] if isinstance(scale, tuple) else scale)


def cut(codes: Tensor, scale: Scale) -> Tensor:
    value = numbers_of(codes, scale).clone()
    value[:, value.shape[1] // 128 * 128 :] = 0
    return value


def summed_in(dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    def multiply(a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(a.shape[0], b.shape[1], dtype=dtype)
        for k in range(0, a.shape[1], 16):
            total = (total + a[:, k : k + 16] @ b[k : k + 16]).to(dtype)
        return total

    return multiply


planted("scale_of_the_next_row", "takes the scale of the row before", moved(0))
planted("scale_of_the_next_block", "takes the scale of the block before in its row", moved(1))
planted("scale_in_bf16", "rounds scales to bf16", coarse)
planted("wrong_bias", "takes 8 for the bias of e4m3", half_bias)
planted("swaps_nibbles", "takes the high bits for the even column", swapped)
planted("flushes_denormals", "reads denormal codes as zero", without_denormals)
planted("reads_nan_as_480", "reads the code of NaN as a number", without_nan)
planted("sums_in_f16", "keeps sums in f16", numbers_of, summed_in(torch.float16))
planted("sums_in_bf16", "keeps sums in bf16", numbers_of, summed_in(torch.bfloat16))
planted("drops_the_last_block", "leaves out what lies beyond whole blocks of 128", cut)
planted("forgets_the_tensor_scale", "multiplies with the scales of blocks alone", without_tensor_scale)
