"""Encodes and decodes the number formats of eight bits and fewer, exactly, in torch alone.

Operator files write their references with this module, and the harness judges quantizers with it. It computes in
float64, in which every code, scale and midpoint of two codes is exact; warpwatch.contract.number_formats names the
formats and their sources. Codes are e4m3 and e5m2 in torch's dtypes, i8 in int8, and two codes of 4 bits in a byte of
uint8, that of the even column in the low bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from warpwatch.contract.number_formats import NumberFormat, is_number_format, number_format

__all__ = [
    "LARGEST",
    "SMALLEST_MAXIMUM",
    "NumberFormat",
    "as_scales",
    "block_maxima",
    "decode",
    "dequantize",
    "encode",
    "exact_scales",
    "exact_tensor_scale",
    "format_of",
    "is_coded",
    "number_format",
    "pack",
    "power_of_two",
    "quantize",
    "quotients",
    "spread",
    "stored_dtype",
    "unpack",
]


@dataclass(frozen=True, slots=True)
class _Float:
    """Bits of exponent and fraction, the bias, the largest finite magnitude as number and code, and the code of NaN."""

    exponent: int
    fraction: int
    bias: int
    largest: float
    largest_code: int
    nan_code: int | None

    @property
    def smallest_exponent(self) -> int:
        """That of the smallest normal number, which denormals have as well."""
        return 1 - self.bias

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.fraction)


_FLOATS = {
    "e4m3": _Float(4, 3, 7, 448.0, 0x7E, 0x7F),
    "e5m2": _Float(5, 2, 15, 57344.0, 0x7B, 0x7F),
    "e2m1": _Float(2, 1, 1, 6.0, 0x7, None),
}
_INTEGERS = {"i8": 8, "i4": 4}
LARGEST = {name: element.largest for name, element in _FLOATS.items()} | {"i8": 127.0, "i4": 7.0}
"""The number that the largest magnitude of a block is scaled to."""
SMALLEST_MAXIMUM = 1e-12
"""What stands for the largest magnitude of a block or tensor whose numbers are all smaller, where the scale is f32, as
in torchao."""
_E8M0_BIAS, _E8M0_NAN = 127, 255


def stored_dtype(name: str) -> torch.dtype:
    """The dtype in which codes of an element, or scales, lie in memory."""
    dtypes = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu", "i8": "int8"}
    dtypes |= {"e2m1": "uint8", "i4": "uint8", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}
    dtype: torch.dtype = getattr(torch, dtypes[name])
    return dtype


def is_coded(tensor: Tensor) -> bool:
    """Whether the tensor holds codes of eight bits in one of torch's dtypes, which few of torch's operators take."""
    return tensor.dtype.is_floating_point and tensor.element_size() == 1


def decode(codes: Tensor, element: str) -> Tensor:
    """The numbers of the codes in float64. Numbers that were decoded before stay; codes of 4 bits are not packed."""
    if codes.dtype.is_floating_point and codes.element_size() > 1:
        return codes.double()
    if element in _INTEGERS:
        signed = codes.long()
        return torch.where(signed >= 8, signed - 16, signed).double() if element == "i4" else signed.double()
    code = codes.view(torch.uint8).long()
    if element == "e8m0":
        return torch.where(code == _E8M0_NAN, torch.nan, power_of_two(code - _E8M0_BIAS))
    form = _FLOATS[element]
    magnitude = code & (form.sign - 1)
    exponent, fraction = magnitude >> form.fraction, (magnitude & ((1 << form.fraction) - 1)).double()
    is_normal = exponent > 0
    significand = torch.where(is_normal, 1.0, 0.0) + fraction / (1 << form.fraction)
    value = significand * power_of_two(torch.where(is_normal, exponent - form.bias, form.smallest_exponent))
    if form.nan_code is not None:
        value = torch.where(magnitude > form.largest_code, torch.nan, value)
    if element == "e5m2":
        value = torch.where(magnitude == 0x7C, torch.inf, value)
    return torch.where(code >= form.sign, -value, value)


def encode(numbers: Tensor, element: str) -> Tensor:
    """The codes of the nearest numbers, of two equally near the even one; larger numbers and infinities become the
    largest of their sign. NaN becomes NaN where the element has it, else zero. Codes of 4 bits are not packed."""
    wide = numbers.double()
    if element in _INTEGERS:
        end = 1 << (_INTEGERS[element] - 1)
        codes = wide.nan_to_num(0.0, end, -end).round().clamp(-end, end - 1).to(torch.int8)
        return codes if element == "i8" else codes.view(torch.uint8) & 0xF
    form = _FLOATS[element]
    magnitude = wide.abs().nan_to_num(0.0, form.largest).clamp(max=form.largest)
    exponent = _exponent(magnitude).clamp(min=form.smallest_exponent)
    # A number that is rounded up to the next power of two has all bits of its fraction carried into the exponent.
    units = (magnitude / power_of_two(exponent - form.fraction)).round().long()
    code = units + ((exponent - form.smallest_exponent) << form.fraction)
    code = torch.where(wide.signbit(), code + form.sign, code)
    code = torch.where(wide.isnan(), form.nan_code or 0, code).to(torch.uint8)
    return code if element == "e2m1" else code.view(stored_dtype(element))


def power_of_two(exponent: Tensor) -> Tensor:
    """2 to whole numbers from -1022 to 1023, in float64, by its bits: exp2 and ldexp may be off on some devices."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def _exponent(magnitude: Tensor) -> Tensor:
    """That of the largest power of two which is not larger than the number, which is -1023 for zero."""
    return ((magnitude.view(torch.int64) >> 52) & 0x7FF) - 1023


def pack(codes: Tensor) -> Tensor:
    """Two codes of 4 bits in each byte, that of the even column in the low bits."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    return torch.stack([packed & 0xF, packed >> 4], -1).flatten(-2)


def spread(scale: Tensor, rows: int, columns: int) -> Tensor:
    """The scale of every element of a matrix, by the number of scales: one, one for each row, or one for each block of
    16 to 128, the last of which may be smaller."""
    down, across = _block_side(rows, scale.shape[0]), _block_side(columns, scale.shape[1])
    return scale.repeat_interleave(down, 0)[:rows].repeat_interleave(across, 1)[:, :columns]


def _block_side(size: int, count: int) -> int:
    if count in (1, size):
        return size if count == 1 else 1
    side = next((side for side in (16, 32, 64, 128) if -(-size // side) == count), None)
    if side is None:
        raise ValueError(f"{count} scales do not divide {size} rows or columns into blocks of 16, 32, 64 or 128")
    return side


def dequantize(codes: Tensor, scale: Tensor | tuple[Tensor, Tensor] | None, element: str) -> Tensor:
    """The numbers of a matrix in float64: codes, in memory as `quantize` returns them, times their scales.

    scale: those of the blocks; with that of the tensor for nvfp4; None where there are none.
    """
    is_packed = codes.dtype == torch.uint8
    numbers = decode(unpack(codes) if is_packed else codes, element)
    if scale is None:
        return numbers
    blocks, tensor = scale if isinstance(scale, tuple | list) else (scale, None)
    name = str(blocks.dtype).removeprefix("torch.float8_")[:4]
    numbers = numbers * spread(decode(blocks, name), *numbers.shape)
    return numbers if tensor is None else numbers * tensor.double()


def format_of(codes: Tensor, scale: Tensor | tuple[Tensor, Tensor] | None, packed: str = "e2m1") -> str:
    """The name of the format of a matrix, by the dtypes and shapes of its codes and scales. Where several fit, as for
    a matrix of one block, it is that of rows. packed: the element of codes of which a byte holds two."""
    elements = {torch.uint8: packed, torch.int8: "i8", torch.float8_e5m2: "e5m2"}
    element = elements.get(codes.dtype, "e4m3")
    blocks = scale[0] if isinstance(scale, tuple | list) else scale
    if blocks is None:
        return element
    rows, columns = codes.shape[0], codes.shape[1] * (2 if codes.dtype == torch.uint8 else 1)
    if element == "i4":
        return next(name for name in ("i4g128", "i4g64", "i4g32") if _fits(name, blocks, rows, columns))
    if is_coded(blocks):
        named = {("e4m3", False): "mxfp8", ("e5m2", False): "mxfp8-e5m2", ("e2m1", False): "mxfp4"}
        return named.get((element, blocks.dtype == torch.float8_e4m3fn), "nvfp4")
    scalings = ("row", "tensor", "1x128", "128x128")
    return next(f"{element}-{name}" for name in scalings if _fits(f"{element}-{name}", blocks, rows, columns))


def _fits(name: str, scale: Tensor, rows: int, columns: int) -> bool:
    # i8 has no blocks of 128, which its names leave out.
    return is_number_format(name) and number_format(name).scale_shape(rows, columns) == tuple(scale.shape)


def block_maxima(numbers: Tensor, form: NumberFormat) -> Tensor:
    """The largest magnitude of every block; NaN where the block holds one."""
    rows, columns = numbers.shape
    height, width = form.block_of(rows, columns)
    down, across = form.scale_shape(rows, columns)
    padded = torch.nn.functional.pad(numbers.double().abs(), (0, across * width - columns, 0, down * height - rows))
    return padded.reshape(down, height, across, width).amax((1, 3))


def exact_scales(numbers: Tensor, form: NumberFormat, tensor_scale: Tensor | None = None) -> Tensor:
    """The scale of every block in float64, before it is rounded to the format of the scales.

    The largest magnitude of a block becomes the largest number of the element. An e8m0 scale is the power of two that
    section 6.3 of OCP Microscaling 1.0 gives: its exponent is that of the largest magnitude less that of the element's
    largest number, and what is then too large saturates. tensor_scale: of nvfp4, what block scales are divided by.
    """
    maxima = block_maxima(numbers, form)
    if form.scale == "e8m0":
        above = _exponent(torch.tensor(LARGEST[form.element], dtype=torch.float64)).item()
        codes = (_exponent(maxima) - above + _E8M0_BIAS).clamp(0, _E8M0_NAN - 1)
        return torch.where(maxima.isfinite(), power_of_two(codes - _E8M0_BIAS), torch.nan)
    if tensor_scale is not None:
        return maxima / LARGEST[form.element] / tensor_scale.double()
    return maxima.clamp(min=SMALLEST_MAXIMUM) / LARGEST[form.element]


def exact_tensor_scale(numbers: Tensor, form: NumberFormat) -> Tensor:
    """The f32 scale of an nvfp4 tensor before rounding: with it, the largest block scale is the largest of e4m3."""
    largest = numbers.double().abs().amax() if numbers.numel() else numbers.new_zeros((), dtype=torch.float64)
    return largest.clamp(min=SMALLEST_MAXIMUM) / (LARGEST[form.element] * LARGEST[form.scale])


def as_scales(exact: Tensor, name: str) -> Tensor:
    """Scales rounded to the format of scales."""
    if name == "e8m0":
        codes = torch.where(exact.isfinite(), _exponent(exact) + _E8M0_BIAS, _E8M0_NAN)
        return codes.to(torch.uint8).view(stored_dtype(name))
    return encode(exact, name) if name == "e4m3" else exact.to(stored_dtype(name))


def quotients(numbers: Tensor, scale: Tensor) -> Tensor:
    """What the codes of a matrix round: each number over its scale, and zero where the scale is zero.

    scale: of every block, in float64.
    """
    every = spread(scale, *numbers.shape)
    return torch.where(every == 0, torch.zeros_like(every).copysign(numbers.double()), numbers.double() / every)


def quantize(numbers: Tensor, name: str) -> tuple[Tensor, ...]:
    """(codes, scales) of a matrix, and the scale of the tensor for nvfp4; (codes,) in a format without scales."""
    form = number_format(name)
    tensor = as_scales(exact_tensor_scale(numbers, form), "f32") if form.has_tensor_scale else None
    if not form.scale:
        codes = encode(numbers, form.element)
        return (pack(codes) if form.is_packed else codes,)
    scale = as_scales(exact_scales(numbers, form, tensor), form.scale)
    wide = decode(scale, form.scale) * (1.0 if tensor is None else tensor.double())
    codes = encode(quotients(numbers, wide), form.element)
    return (pack(codes) if form.is_packed else codes, scale, *(() if tensor is None else (tensor,)))
