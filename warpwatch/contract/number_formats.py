"""Number formats of eight bits and fewer: their elements, and which elements share a scale.

A tensor in such a format is a matrix of codes, and of scales: a number is the value of its code times the scale of its
block. Sources: OCP 8-bit Floating Point Specification 1.0 (e4m3, e5m2), OCP Microscaling Formats 1.0 (e2m1, e8m0,
mxfp8, mxfp4: blocks of 32), NVIDIA's cuDNN and cuBLAS documents on block scaling (nvfp4: blocks of 16 with e4m3 scales
and an f32 scale of the tensor; f32 scales of 1x128 and 128x128 blocks on Hopper).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

ELEMENT_BITS = {"e4m3": 8, "e5m2": 8, "e2m1": 4, "i8": 8, "i4": 4}
"""Codes of 4 bits lie two in a byte, that of the even column in the low bits, as in torchao's MX and NVFP4 tensors and
cuBLAS' matrices."""
SCALE_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "e8m0": 1, "e4m3": 1}
PLAIN = {"f32": 32, "bf16": 16, "f16": 16}
"""Bits of formats without codes, which name the other side of a mixed case: `w=i4g128,x=bf16`."""

FORMATS = {
    "e4m3": "codes without a scale; 448 is the largest, S.1111.111 is NaN, there is no infinity",
    "e5m2": "codes without a scale; 57344 is the largest, with infinities and NaN as in IEEE 754",
    "i8": "two's complement without a scale",
    "e4m3-tensor, e5m2-tensor, i8-tensor": "one f32 scale",
    "e4m3-row, e5m2-row, i8-row": "an f32 scale for each row",
    "e4m3-1x128, e5m2-1x128": "an f32 scale for each 128 numbers of a row",
    "e4m3-128x128, e5m2-128x128": "an f32 scale for each square of 128 × 128",
    "mxfp8, mxfp8-e5m2": "e4m3, or e5m2, with an e8m0 scale for each 32 numbers of a row (OCP Microscaling 1.0)",
    "mxfp4": "e2m1, two in a byte, with an e8m0 scale for each 32 numbers of a row (OCP Microscaling 1.0)",
    "nvfp4": "e2m1, two in a byte, with an e4m3 scale for each 16 numbers of a row, and an f32 scale of the tensor",
    "i4g32, i4g64, i4g128": "-8 to 7, two in a byte, with an f32 scale for each 32, 64 or 128 numbers of a row",
    "f32, bf16, f16": "no codes: the other side of a mixed case",
}
"""Every name, and the meaning that docs/reference/operators.md gives it."""

_MICROSCALED = {
    "mxfp8": ("e4m3", "e8m0", 32),
    "mxfp8-e5m2": ("e5m2", "e8m0", 32),
    "mxfp4": ("e2m1", "e8m0", 32),
    "nvfp4": ("e2m1", "e4m3", 16),
}
_BLOCKS = {"tensor": (0, 0), "row": (1, 0), "1x128": (1, 128), "128x128": (128, 128)}


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How the numbers of a matrix are stored.

    element: of its codes, or a plain format such as bf16. scale: the format of the scales, empty where there are none.
    block: rows and columns that share a scale; 0 stands for all. has_tensor_scale: whether one more f32 scale belongs
    to the whole tensor.
    """

    name: str
    element: str
    scale: str = ""
    block: tuple[int, int] = (0, 0)
    has_tensor_scale: bool = False

    @property
    def is_packed(self) -> bool:
        """Whether a byte holds two codes."""
        return ELEMENT_BITS.get(self.element) == 4

    def block_of(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of a block in a matrix of this size."""
        return self.block[0] or max(rows, 1), self.block[1] or max(columns, 1)

    def scale_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of the scales of a matrix; a last block may be smaller than the others."""
        height, width = self.block_of(rows, columns)
        return -(-rows // height), -(-columns // width)

    def count_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix with its scales."""
        bits = ELEMENT_BITS.get(self.element) or PLAIN[self.element]
        down, across = self.scale_shape(rows, columns)
        scales = down * across * SCALE_BYTES[self.scale] if self.scale else 0
        return rows * columns * bits // 8 + scales + (4 if self.has_tensor_scale else 0)


@cache
def number_format(name: str) -> NumberFormat:
    """The format of this name; ValueError for any other text."""
    if not is_number_format(name):
        raise ValueError(f"{name!r} is no number format: choose from {', '.join(FORMATS)}")
    element, _, scaling = name.partition("-")
    if name in _MICROSCALED:
        element, scale, width = _MICROSCALED[name]
        return NumberFormat(name, element, scale, (1, width), has_tensor_scale=name == "nvfp4")
    if element.startswith("i4g"):
        return NumberFormat(name, "i4", "f32", (1, int(element.removeprefix("i4g"))))
    return NumberFormat(name, element, "f32" if scaling else "", _BLOCKS.get(scaling, (0, 0)))


def is_number_format(text: str) -> bool:
    return any(text in names.split(", ") for names in FORMATS)


def peak_of(formats: tuple[str, ...], precision: str) -> str:
    """The name of the measured peak that bounds a product of operands in these formats: e4m3 or i8 where both have such
    elements, else the precision of the case."""
    elements = {number_format(name).element for name in formats}
    if len(formats) < 2:
        return precision
    if elements <= {"e4m3", "e5m2"}:
        return "e4m3"
    return elements.pop() if elements in ({"i8"}, {"e2m1"}) else precision
