"""Mutants of quantize: faults in single codes and scales, which an error of the whole tensor lets pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from warpwatch.quantization import (
    LARGEST,
    NumberFormat,
    as_scales,
    decode,
    dequantize,
    encode,
    exact_scales,
    exact_tensor_scale,
    pack,
    quotients,
)
from warpwatch.quantization import number_format as format_of

from ..quantize import operator as shipped
from ._common import without_variants

operator = without_variants(shipped)

caught_by = {
    "scale_of_the_next_block": "wrong_values y[0]",
    "truncates": "wrong_values y[0]",
    "rounds_ties_up": "wrong_values y[0]",
    "one_code_too_large": "wrong_values y[0]",
    "flushes_denormals": "wrong_values y[0]",
    "swaps_nibbles": "wrong_values y[0]",
    "wraps_around": "wrong_values y[0]",
    "saturates_early": "wrong_values y[0]",
    "scale_in_bf16": "wrong_values y[1]",
    "wrong_bias": "wrong_values y[1]",
    "scale_of_positive_numbers": "wrong_values y[1]",
    "swallows_nan": "probe special values",
    "copy_not_transposed": "wrong_form",
    "quantizes_codes_again": "wrong_values y[2]",
}

Outputs = tuple[Tensor, ...]


def unchanged(tensor: Tensor, form: NumberFormat) -> Tensor:
    return tensor


@dataclass(frozen=True, slots=True)
class Faults:
    """What is done to the numbers that scales are computed from, to the exact scales, to the stored ones that numbers
    are divided by, to quotients, and to codes."""

    measured: Callable[[Tensor, NumberFormat], Tensor] = unchanged
    exact: Callable[[Tensor, NumberFormat], Tensor] = unchanged
    scale: Callable[[Tensor, NumberFormat], Tensor] = unchanged
    quotient: Callable[[Tensor, NumberFormat], Tensor] = unchanged
    codes: Callable[[Tensor, NumberFormat], Tensor] = unchanged


def quantized(x: Tensor, name: str, faults: Faults) -> Outputs:
    form = format_of(name)
    tensor = as_scales(exact_tensor_scale(x, form), "f32") if form.has_tensor_scale else None
    scale = as_scales(faults.exact(exact_scales(faults.measured(x, form), form, tensor), form), form.scale)
    wide = decode(scale, form.scale) * (1.0 if tensor is None else tensor.double())
    quotient = faults.quotient(quotients(x, faults.scale(wide, form)), form)
    codes = faults.codes(encode(quotient, form.element), form)
    return (pack(codes) if form.is_packed else codes, scale, *(() if tensor is None else (tensor,)))


def both(x: Tensor, name: str, transposed: bool, faults: Faults) -> Outputs:
    return (*quantized(x, name, faults), *(quantized(x.mT, name, faults) if transposed else ()))


def planted(variant: str, idea: str, **faults: Callable[[Tensor, NumberFormat], Tensor]) -> None:
    planted_faults = Faults(**faults)

    @operator.variant(variant, idea=idea)
    def _(x: Tensor, number_format: str, transposed: bool) -> Outputs:
        return both(x, number_format, transposed, planted_faults)


def one_up(codes: Tensor, form: NumberFormat) -> Tensor:
    """The first code of the matrix, made one larger in magnitude where that is a number."""
    changed = codes.clone()
    first = changed.view(torch.uint8)[:1, :1]
    first += (first & 0x7 < 6).to(torch.uint8)
    return changed


def truncated(quotient: Tensor, form: NumberFormat) -> Tensor:
    nearest = decode(encode(quotient, form.element), form.element)
    # Half a step below in magnitude, the nearest code is the one that truncation gives.
    return torch.where(nearest.abs() > quotient.abs(), quotient * (1 - 2.0**-3), quotient)


def ties_up(quotient: Tensor, form: NumberFormat) -> Tensor:
    return quotient * (1 + 2.0**-30)


def without_denormals(quotient: Tensor, form: NumberFormat) -> Tensor:
    smallest = {"e4m3": 2.0**-6, "e5m2": 2.0**-14, "e2m1": 1.0}.get(form.element, 0.0)
    return torch.where(quotient.abs() < smallest, 0.0, quotient)


def wrapped(codes: Tensor, form: NumberFormat) -> Tensor:
    """The largest code becomes the next, which is NaN in e4m3."""
    if form.element != "e4m3":
        return codes
    code = codes.view(torch.uint8)
    return torch.where(code & 0x7F == 0x7E, code + 1, code).view(codes.dtype)


planted(
    "scale_of_the_next_block", "divides by the scale of the block before", scale=lambda s, _: s.roll(1, 1).roll(1, 0)
)
planted("truncates", "rounds towards zero", quotient=truncated)
planted("rounds_ties_up", "rounds ties away from zero", quotient=ties_up)
planted("one_code_too_large", "is off by one in one code", codes=one_up)
planted("flushes_denormals", "gives zero for denormal codes", quotient=without_denormals)
planted(
    "swaps_nibbles",
    "puts the even column into the high bits",
    codes=lambda codes, form: codes.view(len(codes), -1, 2).flip(-1).flatten(-2) if form.is_packed else codes,
)
planted("wraps_around", "does not saturate", codes=wrapped)
planted(
    "saturates_early",
    "clamps to the second largest code",
    quotient=lambda q, form: q.clamp(-0.9 * LARGEST[form.element], 0.9 * LARGEST[form.element]),
)
planted("scale_in_bf16", "rounds the scale to bf16", exact=lambda s, form: s.bfloat16().double())
planted("wrong_bias", "takes 126 for the bias of a scale", exact=lambda s, form: s * 2 if form.scale == "e8m0" else s)


planted(
    "scale_of_positive_numbers",
    "takes the largest number of a block and not the largest magnitude",
    measured=lambda numbers, form: numbers.clamp(min=0),
)


@operator.variant("swallows_nan", idea="takes the maximum of the numbers that are not NaN")
def swallows_nan(x: Tensor, number_format: str, transposed: bool) -> Outputs:
    return both(x.nan_to_num(0.0, float("inf"), -float("inf")), number_format, transposed, Faults())


@operator.variant("copy_not_transposed", idea="returns the same codes as the transposed copy")
def copy_not_transposed(x: Tensor, number_format: str, transposed: bool) -> Outputs:
    return quantized(x, number_format, Faults()) * (2 if transposed else 1)


@operator.variant("quantizes_codes_again", idea="quantizes the codes for the transposed copy, and not the numbers")
def quantizes_codes_again(x: Tensor, number_format: str, transposed: bool) -> Outputs:
    form, (codes, scale, *_) = format_of(number_format), quantized(x, number_format, Faults())
    if not transposed or form.is_packed:
        return both(x, number_format, transposed, Faults())
    return codes, scale, *quantized(dequantize(codes, scale, form.element).mT, number_format, Faults())
