"""Seeded inputs in number formats of eight bits and fewer, and numbers that are hard to quantize.

Blocks of several kinds lie in every matrix: a fault in one code, in denormals or in a scale then shows in the error of
the whole result, because the scales give all blocks about the same size. NaN codes are left to the probe of special
values: they would leave no number to judge.
"""

from __future__ import annotations

import torch
from torch import Tensor

from warpwatch.contract.number_formats import NumberFormat, number_format
from warpwatch.quantization import (
    LARGEST,
    as_scales,
    block_maxima,
    decode,
    encode,
    pack,
    power_of_two,
    spread,
    stored_dtype,
)

_KINDS = 8
"""Of blocks: 0 to 2 hold normal numbers."""
_EVERY_CODE, _EQUAL, _OUTLIER, _ZERO, _DENORMAL = 3, 4, 5, 6, 7
_TIES, _EXTREME = 3, 7


def draw_codes(
    name: str, rows: int, columns: int, generator: torch.Generator
) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor] | None]:
    """(codes, scales) of a matrix: blocks of normal numbers, of all finite codes, of equal codes, of denormals, of
    zeros, and of denormals with one largest number."""
    form, device = number_format(name), generator.device
    kinds, first = _kinds(form, rows, columns, generator), _random(generator, rows, columns)
    normal = torch.randn(rows, columns, generator=generator, device=device, dtype=torch.float64)
    finite = _finite_numbers(form.element).to(device)
    positive = finite[finite > 0]
    every = finite[(first * len(finite)).long()]
    small = positive[(first * (3 if form.element in ("i8", "i4", "e2m1") else 7)).long()] * normal.sign()
    numbers = torch.where(kinds < _EVERY_CODE, normal * (LARGEST[form.element] / 4), every)
    numbers = torch.where(kinds == _EQUAL, positive[len(positive) // 2], numbers)
    numbers = torch.where((kinds == _DENORMAL) | (kinds == _OUTLIER), small, numbers)
    numbers = torch.where(
        (kinds == _OUTLIER) & _one_of_each(form, rows, columns, device), LARGEST[form.element], numbers
    )
    numbers = torch.where(kinds == _ZERO, 0.0, numbers)
    codes = encode(numbers, form.element)
    stored = pack(codes) if form.is_packed else codes
    if not form.scale:
        return stored, None
    size = block_maxima(decode(codes, form.element), form)
    wanted = (0.5 + 1.5 * _random(generator, *size.shape)) / torch.where(size > 0, size, 1.0)
    if form.scale == "e8m0":
        return stored, as_scales(wanted, "e8m0")
    if form.has_tensor_scale:
        tensor = torch.tensor(1 / 300, device=device)
        return stored, (encode(wanted / tensor.double(), "e4m3"), tensor)
    return stored, wanted.to(stored_dtype(form.scale))


def draw_quantizable(name: str, rows: int, columns: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Numbers for a quantizer: blocks of normal numbers in several sizes, of midpoints between two codes, of equal
    numbers, with one outlier, of zeros, and of the largest numbers of the dtype. Zeros and denormals lie everywhere."""
    form, device = number_format(name), generator.device
    kinds = _kinds(form, rows, columns, generator)
    normal = torch.randn(rows, columns, generator=generator, device=device, dtype=torch.float64)
    exponents = (8 * _random(generator, *form.scale_shape(rows, columns))).floor() - 4
    powers = power_of_two(spread(exponents, rows, columns))
    finite = _finite_numbers(form.element).to(device)
    middles = (finite[1:] + finite[:-1]) / 2
    ties = middles[(_random(generator, rows, columns) * len(middles)).long()]
    ones = _one_of_each(form, rows, columns, device)
    # With the largest number of the element in it, the scale of the block is a power of two, and each tie is exact.
    ties = torch.where(ones, LARGEST[form.element], ties.clamp(-LARGEST[form.element], LARGEST[form.element]))
    numbers = torch.where(kinds == _TIES, ties, normal)
    numbers = torch.where(kinds == _EQUAL, 0.7, numbers)
    numbers = torch.where((kinds == _OUTLIER) & ones, 3000.0, numbers) * powers
    numbers = torch.where(kinds == _ZERO, 0.0, numbers)
    largest, tiny = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal / 4
    extreme = torch.where(_random(generator, rows, columns) < 0.5, largest, -largest / 3)
    numbers = torch.where(kinds == _EXTREME, extreme, numbers)
    chosen = _random(generator, rows, columns)
    numbers = torch.where((chosen < 0.02) & ~ones, torch.where(chosen < 0.01, -0.0, tiny), numbers)
    return numbers.clamp(-largest, largest).to(dtype)


def _finite_numbers(element: str) -> Tensor:
    """Every number that the element can hold, ascending, each once."""
    codes = torch.arange(16 if element in ("e2m1", "i4") else 256).to(torch.uint8).view(stored_dtype(element))
    numbers = decode(codes, element)
    return torch.tensor(sorted({*numbers[numbers.isfinite()].tolist()}), dtype=torch.float64)


def _random(generator: torch.Generator, rows: int, columns: int) -> Tensor:
    return torch.rand(rows, columns, generator=generator, device=generator.device, dtype=torch.float64)


def _kinds(form: NumberFormat, rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """The kind of the block of every element. The first block, and that of a whole tensor, holds normal numbers; where
    there are no scales, rows are of several kinds."""
    down, across = form.scale_shape(rows, columns)
    if not form.scale:
        down, across = rows, 1
    count = down * across
    order = torch.randperm(count, generator=generator, device=generator.device)
    kinds = (order % _KINDS).view(down, across)
    kinds[:1, :1] = 0
    return spread(kinds, rows, columns)


def _one_of_each(form: NumberFormat, rows: int, columns: int, device: torch.device) -> Tensor:
    """The first element of every block."""
    height, width = form.block_of(rows, columns)
    first_row = torch.arange(rows, device=device) % (height if form.scale else 1) == 0
    return first_row[:, None] & (torch.arange(columns, device=device) % width == 0)[None]
