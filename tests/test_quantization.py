"""Number formats: every code against a decoder written from the specifications, rounding, scales, and their names."""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from warpwatch import Case, case
from warpwatch.contract.case import derive_case, parse_case, peak_of_case
from warpwatch.contract.number_formats import FORMATS, number_format
from warpwatch.quantization import (
    as_scales,
    decode,
    dequantize,
    encode,
    exact_scales,
    pack,
    quantize,
    spread,
    stored_dtype,
    unpack,
)

NAMES = [name for names in FORMATS for name in names.split(", ")]
CODED = [name for name in NAMES if name not in ("f32", "bf16", "f16")]


def by_specification(element: str, code: int) -> float | Fraction:
    """The value of a code, from the tables of the specifications: e4m3 and e5m2 of OCP 8-bit Floating Point 1.0, table
    1; e2m1 and e8m0 of OCP Microscaling Formats 1.0, sections 5.3.3 and 5.4.1; two's complement."""
    if element == "e8m0":
        return math.nan if code == 0b1111_1111 else Fraction(2) ** (code - 127)
    if element in ("i8", "i4"):
        width = int(element[1:])
        return Fraction(code - (1 << width) if code >> (width - 1) else code)
    bits = f"{code:0{4 if element == 'e2m1' else 8}b}"
    sign, exponent_bits = bits[0], {"e4m3": 4, "e5m2": 5, "e2m1": 2}[element]
    exponent, fraction = bits[1 : 1 + exponent_bits], bits[1 + exponent_bits :]
    if element == "e4m3" and bits[1:] == "1111111":
        return math.nan
    if element == "e5m2" and exponent == "11111":
        return math.nan if int(fraction, 2) else math.inf if sign == "0" else -math.inf
    bias = {"e4m3": 7, "e5m2": 15, "e2m1": 1}[element]
    share = Fraction(int(fraction, 2), 2 ** len(fraction))
    power = Fraction(2) ** (max(int(exponent, 2), 1) - bias)
    return (share + (1 if int(exponent, 2) else 0)) * power * (-1 if sign == "1" else 1)


def all_codes(element: str) -> Tensor:
    codes = torch.arange(16 if element in ("e2m1", "i4") else 256).to(torch.uint8)
    return codes.view(stored_dtype(element))


@pytest.mark.parametrize("element", ["e4m3", "e5m2", "e2m1", "e8m0", "i8", "i4"])
def test_every_code_has_the_value_of_its_specification(element: str) -> None:
    codes = all_codes(element)
    values = decode(codes, element).tolist()
    for code, value in enumerate(values):
        assert (value == by_specification(element, code)) or (value != value and code in not_numbers(element)), code
    if element in ("e4m3", "e5m2", "e8m0"):
        by_torch = codes.double()
        assert torch.equal(by_torch.nan_to_num(7.0), torch.tensor(values, dtype=torch.float64).nan_to_num(7.0))


def not_numbers(element: str) -> set[int]:
    return {code for code in range(256) if isinstance(v := by_specification(element, code), float) and v != v}


@pytest.mark.parametrize("element", ["e4m3", "e5m2", "e2m1", "i8", "i4"])
def test_numbers_become_the_nearest_code_of_two_the_even_one(element: str) -> None:
    """Every code, every midpoint of two, the numbers beside both, and what is too large."""
    known: dict[Fraction, int] = {}
    for code in range(16 if element in ("e2m1", "i4") else 256):
        value = by_specification(element, code)
        if isinstance(value, Fraction):
            known.setdefault(value, code)
    values = sorted(known)
    exact = [float(value) for value in values]
    middles = [(a + b) / 2 for a, b in pairwise(exact)]
    numbers = sorted({n for m in [*exact, *middles] for n in (m, math.nextafter(m, 1e9), math.nextafter(m, -1e9))})
    numbers += [2 * exact[-1], 2 * exact[0], 1e30, -1e30, math.inf, -math.inf]
    codes = encode(torch.tensor(numbers, dtype=torch.float64), element)
    decoded = decode(codes, element).tolist()
    for number, given, code in zip(numbers, decoded, codes.view(torch.uint8).tolist(), strict=True):
        clamped = min(max(number, exact[0]), exact[-1])
        above = min(bisect_left(exact, clamped), len(exact) - 1)
        below = max(above - 1, 0) if exact[above] != clamped else above
        up, down = exact[above] - clamped, clamped - exact[below]
        even = above if known[values[above]] % 2 == 0 else below
        wanted = above if up < down else below if down < up else even
        assert given == exact[wanted], (number, given, exact[wanted], code)


def test_signs_of_zeros_and_not_a_number_are_kept() -> None:
    numbers = torch.tensor([0.0, -0.0, -1e-9, math.nan, math.inf, -math.inf])
    for element, codes in {
        "e4m3": [0, 0x80, 0x80, 0x7F, 0x7E, 0xFE],
        "e5m2": [0, 0x80, 0x80, 0x7F, 0x7B, 0xFB],
        "e2m1": [0, 8, 8, 0, 7, 15],
        "i8": [0, 0, 0, 0, 127, 128],
        "i4": [0, 0, 0, 0, 7, 8],
    }.items():
        assert encode(numbers, element).view(torch.uint8).tolist() == codes, element


def test_the_even_column_lies_in_the_low_bits() -> None:
    assert pack(torch.tensor([[1, 2, 15, 8]], dtype=torch.uint8)).tolist() == [[0x21, 0x8F]]
    codes = torch.randint(0, 16, (5, 6), dtype=torch.uint8)
    assert torch.equal(unpack(pack(codes)), codes)


@pytest.mark.parametrize("name", [name for name in CODED if number_format(name).scale])
def test_a_quantized_matrix_is_as_near_as_its_format_allows(name: str) -> None:
    form, rows, columns = number_format(name), 130, 288
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    codes, scale, *tensor = quantize(x, name)
    assert tuple(scale.shape) == form.scale_shape(rows, columns)
    assert scale.dtype == stored_dtype(form.scale)
    assert codes.numel() * codes.element_size() + scale.numel() * scale.element_size() + 4 * len(
        tensor
    ) == form.count_bytes(rows, columns)
    numbers = dequantize(codes, (scale, tensor[0]) if tensor else scale, form.element)
    error = float((numbers - x).norm() / x.norm())
    assert error < {"e4m3": 0.04, "e5m2": 0.08, "e2m1": 0.16, "i8": 0.04, "i4": 0.16}[form.element]


def test_scales_are_those_of_their_specifications() -> None:
    x = torch.zeros(2, 64)
    x[0, :4] = torch.tensor([447.0, -448.0, 3.0, 449.0])
    x[1, 40] = 6.0
    assert exact_scales(x, number_format("e4m3-row")).tolist() == [[449 / 448], [6 / 448]]
    assert exact_scales(x, number_format("mxfp8")).tolist() == [[1.0, 2.0**-127], [2.0**-127, 2.0**-6]]
    assert quantize(x, "mxfp4")[1].view(torch.uint8).tolist() == [[127 + 6, 0], [0, 127]]
    codes, blocks, tensor = quantize(x, "nvfp4")
    assert float(tensor) == float(torch.tensor(449.0) / torch.tensor(6.0 * 448.0))
    assert decode(blocks, "e4m3")[0].tolist() == [448.0, 0.0, 0.0, 0.0]
    assert codes[0, 8:].eq(0).all()


def test_what_is_not_finite_makes_a_scale_that_is_no_number() -> None:
    for value in (math.nan, math.inf):
        x = torch.ones(2, 64)
        x[0, 3] = value
        assert not decode(quantize(x, "mxfp8")[1], "e8m0")[0, 0].isfinite()
        assert not quantize(x, "e4m3-row")[1][0].isfinite()
        assert decode(as_scales(exact_scales(x, number_format("mxfp8")), "e8m0"), "e8m0")[1].eq(2.0**-8).all()


def test_every_element_has_the_scale_of_its_block() -> None:
    scale = torch.arange(6.0).view(2, 3)
    every = spread(scale, 200, 300)
    assert every.shape == (200, 300)
    assert every[127, 127] == 0
    assert every[128, 128] == 4
    assert every[199, 299] == 5
    with pytest.raises(ValueError, match="3 scales do not divide 1000 rows or columns"):
        spread(scale, 200, 1000)


def test_a_case_names_the_format_of_each_side() -> None:
    mixed = case("bf16", rows=1, k=256, w="i4g128", x="bf16")
    assert mixed.key == "rows=1,k=256,w=i4g128,x=bf16,bf16,fwd"
    assert parse_case(mixed.key) == mixed
    assert derive_case("k=512,rows=3,w=i4g128,x=bf16", [mixed]).key == "rows=3,k=512,w=i4g128,x=bf16,bf16,fwd"
    with pytest.raises(ValueError, match="other sizes than the operator"):
        derive_case("k=512,rows=3,w=i4g64,x=bf16", [mixed])
    with pytest.raises(ValueError, match="or a number format, such as a=e4m3-row"):
        parse_case("k=512,w=i3,bf16,fwd")
    assert mixed.number_format("w").count_bytes(256, 256) == 128 * 256 + 4 * 2 * 256
    with pytest.raises(ValueError, match=r"'e4m3-2x2' is no number format: choose from e4m3"):
        number_format("e4m3-2x2")


@pytest.mark.parametrize(
    ("formats", "peak"),
    [
        ({"a": "e4m3-row", "b": "e5m2-row"}, "e4m3"),
        ({"a": "i8-row", "b": "i8-row"}, "i8"),
        ({"a": "nvfp4", "b": "nvfp4"}, "e2m1"),
        ({"w": "i4g128", "x": "bf16"}, "bf16"),
        ({"y": "e4m3-row"}, "bf16"),
    ],
)
def test_a_product_is_bounded_by_the_peak_of_its_elements(formats: dict[str, str], peak: str) -> None:
    given = Case((("m", 8), *formats.items()), "bf16")
    assert given.peak == peak_of_case(given.key, "bf16") == peak


def test_a_case_of_a_program_has_the_peak_of_its_precision() -> None:
    assert peak_of_case("BM_sort/1024", "f32") == "f32"
    assert peak_of_case("BM_sort/1024", None) is None
