"""Quantize a matrix to codes of eight bits or fewer with scales, and its transposed copy where it is asked for.

A training in FP8 needs both: products with the gradients read the transposed copy, whose blocks run along the other
side. Scales and rounding are those of warpwatch.quantization; larger numbers saturate, and a block that holds NaN or
infinity gets a scale that is not finite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, QuantizedOutput, case
from warpwatch.peers import compile_unsupported
from warpwatch.quantization import LARGEST, SMALLEST_MAXIMUM, NumberFormat, pack, spread, stored_dtype
from warpwatch.quantization import number_format as format_of
from warpwatch.quantization import quantize as by_definition

from ._compiled import compiled

Outputs = tuple[Tensor, ...]


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    x = make.quantizable(case["y"], case["rows"], case["columns"])
    return {"x": x, "number_format": case["y"], "transposed": bool(case["transposed"])}


def case_of(x: Tensor, number_format: str, transposed: bool) -> Case:
    return case(rows=x.shape[0], columns=x.shape[1], y=number_format, transposed=int(transposed))


def reference(x: Tensor, number_format: str, transposed: bool) -> Outputs:
    """Codes and scales, then those of the transposed matrix."""
    return (*by_definition(x, number_format), *(by_definition(x.mT, number_format) if transposed else ()))


def cost(case: Case) -> Cost:
    """Each number is compared with the largest of its block and divided by the scale, for each copy."""
    rows, columns, form = case["rows"], case["columns"], case.number_format("y")
    written = form.count_bytes(rows, columns)
    if case["transposed"]:
        written += form.count_bytes(columns, rows)
    return Cost(2 * rows * columns * (1 + case["transposed"]), case.element_bytes * rows * columns + written)


def quantized(case: Case) -> tuple[QuantizedOutput, ...]:
    outputs = 3 if case.number_format("y").has_tensor_scale else 2
    return tuple(
        QuantizedOutput("x", case["y"], first, first + 1, first + 2 if outputs == 3 else None, transposed=first > 0)
        for first in ((0, outputs) if case["transposed"] else (0,))
    )


@functools.cache
def register_native() -> None:
    """Shapes for torch.compile for the torch operators that the library defines."""

    def empty(x: Tensor, element: int, rows: int, columns: int, block: tuple[int, int], e8m0: bool) -> Outputs:
        name, (height, width) = ELEMENTS[element], (block[0] or rows, block[1] or columns)
        codes = x.new_empty((rows, columns // 2 if name in ("e2m1", "i4") else columns), dtype=stored_dtype(name))
        shape = (rows + height - 1) // height, (columns + width - 1) // width
        return codes, x.new_empty(shape, dtype=torch.uint8 if e8m0 else torch.float32)

    @torch.library.register_fake("warpwatch::quantize")  # type: ignore[untyped-decorator]
    def fake(x: Tensor, element: int, height: int, width: int, e8m0: bool) -> Outputs:
        return empty(x, element, x.shape[0], x.shape[1], (height, width), e8m0)

    @torch.library.register_fake("warpwatch::quantize_both")  # type: ignore[untyped-decorator]
    def fake_both(x: Tensor, element: int, width: int, e8m0: bool) -> Outputs:
        sides = (x.shape, x.shape[::-1])
        return tuple(t for rows, columns in sides for t in empty(x, element, rows, columns, (1, width), e8m0))


def sized(precision: Any, rows: int, columns: int, y: str, transposed: int = 0) -> Case:
    return case(precision, rows=rows, columns=columns, y=y, transposed=transposed)


QUICK = (
    sized("bf16", 256, 512, "e4m3-row"),
    sized("bf16", 256, 512, "e4m3-1x128", 1),
    sized("bf16", 256, 384, "e4m3-128x128"),
    sized("f32", 128, 256, "e5m2-tensor"),
    sized("bf16", 256, 512, "mxfp8", 1),
    sized("bf16", 64, 512, "mxfp4"),
    sized("bf16", 64, 512, "nvfp4"),
    sized("f16", 128, 384, "i8-row"),
    sized("f32", 64, 512, "i4g128"),
)
FULL = (
    *QUICK,
    *(
        sized("bf16", 8192, 8192, y, transposed)
        for y, transposed in (
            ("e4m3-row", 0),
            ("e4m3-1x128", 0),
            ("e4m3-1x128", 1),
            ("e4m3-128x128", 0),
            ("mxfp8", 0),
            ("mxfp8", 1),
            ("mxfp4", 0),
            ("nvfp4", 0),
            ("i8-row", 0),
        )
    ),
)
EDGE = (
    sized("bf16", 1, 32, "e4m3-row", 1),
    sized("bf16", 3, 200, "e4m3-1x128", 1),
    sized("f32", 129, 131, "e4m3-128x128"),
    sized("bf16", 5, 64, "e5m2-1x128"),
    sized("f32", 7, 96, "mxfp8-e5m2"),
    sized("f16", 33, 96, "mxfp4"),
    sized("bf16", 2, 48, "nvfp4"),
    sized("bf16", 1, 1, "i8-tensor"),
)

operator = Operator(
    "quantize",
    "Quantize a matrix to FP8, MXFP8, MXFP4, NVFP4, int8 or int4, with a transposed copy.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    case_of=case_of,
    quantized=quantized,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    native=register_native,
    batch="rows",
)


@operator.variant("v1", idea="the definition in float64")
def v1(x: Tensor, number_format: str, transposed: bool) -> Outputs:
    return reference(x, number_format, transposed)


def float_scales_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case.number_format("y").element == "e2m1":
        return "torch rounds to no format of four bits"
    return None


@operator.variant("v2", idea="torch's maximum, quotient and cast", unsupported=float_scales_unsupported)
def v2(x: Tensor, number_format: str, transposed: bool) -> Outputs:
    return typed(_by_torch(x, number_format, transposed), number_format)


def typed(outputs: Outputs, name: str) -> Outputs:
    """The outputs with e8m0 scales in their dtype and not as bytes: neither torch.compile on a CPU nor torch's stable
    ABI knows it."""
    if format_of(name).scale != "e8m0":
        return outputs
    return tuple(t.view(stored_dtype("e8m0")) if index % 2 else t for index, t in enumerate(outputs))


def _by_torch(x: Tensor, name: str, transposed: bool) -> Outputs:
    return (*_eager(x, name), *(_eager(x.mT.contiguous(), name) if transposed else ()))


def _eager(x: Tensor, name: str) -> Outputs:
    form, wide = format_of(name), x.float()
    scale = _scales(wide, form)
    quotient = wide / spread(scale, *wide.shape)
    if form.scale == "e8m0":
        bits = scale.view(torch.int32)
        # The smallest scale is a denormal of f32, whose exponent is zero as well.
        scale = (bits >> 23).to(torch.uint8)
    if form.element == "i8":
        return quotient.round().clamp(-128, 127).to(torch.int8), scale
    if form.element == "i4":
        return pack(quotient.round().clamp(-8, 7).to(torch.int8).view(torch.uint8) & 0xF), scale
    largest = LARGEST[form.element]
    return quotient.clamp(-largest, largest).to(stored_dtype(form.element)), scale


def _scales(x: Tensor, form: NumberFormat) -> Tensor:
    """The scale of every block in f32; e8m0 scales as powers of two, and NaN where the block is not finite."""
    rows, columns = x.shape
    height, width = form.block_of(rows, columns)
    down, across = form.scale_shape(rows, columns)
    padded = torch.nn.functional.pad(x, (0, across * width - columns, 0, down * height - rows))
    maxima = padded.abs().view(down, height, across, width).amax((1, 3))
    if form.scale != "e8m0":
        return maxima.clamp(min=SMALLEST_MAXIMUM) / LARGEST[form.element]
    above = {"e4m3": 8, "e5m2": 15}[form.element]
    exponent = (maxima.view(torch.int32) >> 23) - above
    powers = torch.where(exponent > 0, exponent << 23, 1 << 22).to(torch.int32).view(torch.float32)
    return torch.where(maxima.isfinite(), powers, torch.nan)


ELEMENTS = ("e4m3", "e5m2", "e2m1", "i8", "i4")
"""As csrc/quantize/quantize.h numbers them."""


def native_unsupported(case: Case, device: DeviceKind) -> str | None:
    form = case.number_format("y")
    if form.has_tensor_scale:
        return "the scale of an nvfp4 tensor needs a pass of its own"
    if case["transposed"] and (form.is_packed or form.block[1] == 0):
        return "the transposed copy has codes of eight bits, in blocks of 32 or 128"
    if device == "cuda" and form.block == (0, 0) and case["rows"] > 1:
        return "one scale of a whole tensor needs a pass of its own"
    if device == "cuda" and form.is_packed and case["columns"] % form.block[1]:
        return "codes of four bits need whole blocks"
    return None


@operator.variant(
    "v3",
    idea="CUDA: neighbouring lanes share a block, tiles in shared memory for the transposed copy; C++: band by band",
    outcome="it reads the numbers once",
    native=True,
    unsupported=native_unsupported,
)
def v3(x: Tensor, number_format: str, transposed: bool) -> Outputs:
    form = format_of(number_format)
    element, (height, width), e8m0 = ELEMENTS.index(form.element), form.block, form.scale == "e8m0"
    outputs: Outputs
    if transposed:
        outputs = torch.ops.warpwatch.quantize_both(x, element, width, e8m0)
    else:
        outputs = torch.ops.warpwatch.quantize(x, element, height, width, e8m0)
    return typed(outputs, number_format)


@operator.variant(
    "compile",
    idea="torch.compile of v2",
    unsupported=lambda case, device: compile_unsupported(case, device) or float_scales_unsupported(case, device),
)
def compiled_v2(x: Tensor, number_format: str, transposed: bool) -> Outputs:
    return typed(_compiled()(x, number_format, transposed), number_format)


@functools.cache
def _compiled() -> Callable[..., Outputs]:
    return compiled(_by_torch)
