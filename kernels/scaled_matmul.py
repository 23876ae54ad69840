"""y = A · Bᵀ of matrices in FP8, MXFP8, MXFP4 or NVFP4: codes with scales of the tensor, of rows or of blocks.

A is (m, k) and B is (n, k), each row after row, as tensor cores and torch._scaled_mm read them. The result is in the
precision of the case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, case
from warpwatch.peers import compile_unsupported, triton_interpreted, triton_unsupported
from warpwatch.quantization import dequantize, format_of, spread

from ._aligned import aligned
from ._compiled import compiled
from ._fp8 import fp8_unsupported
from ._hopper import hopper_unsupported

Scale = Tensor | tuple[Tensor, Tensor]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
WIDTH_16 = 16
"""cuBLAS takes FP8 matrices whose sides are multiples of this."""
COPIED_CODES, COPIED_RESULTS = 16, 8
"""The copy engine takes rows of whole 16 bytes: so many codes, and so many results in bf16."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    a, a_scale = make.codes(case["a"], case["m"], case["k"])
    b, b_scale = make.codes(case["b"], case["n"], case["k"])
    return {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale, "dtype": DTYPES[case.precision]}


def case_of(a: Tensor, b: Tensor, a_scale: Scale, b_scale: Scale, dtype: torch.dtype) -> Case:
    k = a.shape[1] * (2 if a.dtype == torch.uint8 else 1)
    names = format_of(a, a_scale), format_of(b, b_scale)
    if all(isinstance(scale, Tensor) and scale.numel() == 1 for scale in (a_scale, b_scale)):
        # The scale of a matrix with one row is that of the tensor as well, which the other matrix may have.
        names = names[0].replace("-row", "-tensor"), names[1].replace("-row", "-tensor")
    return case(m=a.shape[0], n=b.shape[0], k=k, a=names[0], b=names[1])


def reference(a: Tensor, b: Tensor, a_scale: Scale, b_scale: Scale, dtype: torch.dtype) -> Tensor:
    """The product of what the codes stand for. As oracle it is in float64, like the scales."""
    y = numbers_of(a, a_scale) @ numbers_of(b, b_scale).mT
    first = a_scale if isinstance(a_scale, Tensor) else a_scale[0]
    return y if first.dtype == torch.float64 else y.to(dtype)


def numbers_of(codes: Tensor, scale: Scale) -> Tensor:
    """The numbers of a matrix in float64. Two codes in a byte are those of e2m1."""
    element = {torch.uint8: "e2m1", torch.float8_e5m2: "e5m2"}.get(codes.dtype, "e4m3")
    return dequantize(codes, scale, element)


def cost(case: Case) -> Cost:
    m, n, k = case["m"], case["n"], case["k"]
    read = case.number_format("a").count_bytes(m, k) + case.number_format("b").count_bytes(n, k)
    return Cost(2 * m * n * k, read + case.element_bytes * m * n)


@functools.cache
def register_native() -> None:
    """Shapes for torch.compile for the torch operator that the library defines."""

    @torch.library.register_fake("warpwatch::scaled_matmul")  # type: ignore[untyped-decorator]
    def fake(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> Tensor:
        return a.new_empty(a.shape[0], b.shape[0], dtype=torch.bfloat16)


def sized(precision: Any, m: int, n: int, k: int, a: str, b: str = "") -> Case:
    return case(precision, m=m, n=n, k=k, a=a, b=b or a)


QUICK = (
    sized("bf16", 64, 96, 256, "e4m3-tensor"),
    sized("bf16", 64, 96, 256, "e4m3-row"),
    sized("bf16", 64, 128, 256, "e4m3-1x128", "e4m3-128x128"),
    sized("bf16", 64, 96, 256, "mxfp8"),
    sized("f32", 64, 96, 256, "e4m3-row"),
    sized("f32", 64, 96, 256, "e5m2-1x128", "e4m3-128x128"),
    sized("f32", 64, 96, 256, "mxfp4"),
    sized("f32", 64, 96, 256, "nvfp4"),
)
FULL = (
    *QUICK,
    *(
        sized("bf16", n, n, n, a, b)
        for n in (4096, 8192)
        for a, b in (("e4m3-tensor", ""), ("e4m3-row", ""), ("e4m3-1x128", "e4m3-128x128"))
    ),
    sized("bf16", 128, 7168, 2048, "e4m3-1x128", "e4m3-128x128"),
    sized("bf16", 4096, 4096, 4096, "mxfp8"),
)
EDGE = (
    sized("bf16", 1, 16, 32, "e4m3-row"),
    sized("bf16", 1, 16, 32, "e4m3-tensor"),
    sized("f32", 17, 33, 160, "e4m3-1x128", "e4m3-128x128"),
    sized("bf16", 129, 31, 96, "mxfp8", "mxfp8-e5m2"),
    sized("bf16", 3, 5, 48, "e5m2-row", "e4m3-row"),
    sized("f32", 2, 3, 96, "nvfp4"),
    sized("bf16", 130, 264, 208, "e4m3-1x128", "e4m3-128x128"),
    sized("bf16", 129, 136, 144, "e4m3-row", "e4m3-tensor"),
)

operator = Operator(
    "scaled_matmul",
    "A product of matrices in FP8, MXFP8, MXFP4 or NVFP4, with scales of tensors, rows or blocks.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    case_of=case_of,
    depth=lambda case: int(case["k"]),
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    native=register_native,
    batch="m",
)


@operator.variant("v1", idea="dequantizes both matrices to f32, then torch.mm")
def v1(a: Tensor, b: Tensor, a_scale: Scale, b_scale: Scale, dtype: torch.dtype) -> Tensor:
    return (numbers_of(a, a_scale).float() @ numbers_of(b, b_scale).float().mT).to(dtype)


def codes_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case.number_format("a").is_packed or case.number_format("a").scale == "e8m0":
        return "its scales are floats, and its codes of eight bits"
    return None


@operator.variant(
    "v2", idea="casts codes to f32 and multiplies with the scales, then torch.mm", unsupported=codes_unsupported
)
def v2(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, dtype: torch.dtype) -> Tensor:
    left, right = (codes.float() * spread(scale, *codes.shape) for codes, scale in ((a, a_scale), (b, b_scale)))
    return (left @ right.mT).to(dtype)


@operator.variant(
    "compile",
    idea="torch.compile of v2",
    unsupported=lambda case, device: compile_unsupported(case, device) or codes_unsupported(case, device),
)
def compiled_v2(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, dtype: torch.dtype) -> Tensor:
    return _compiled()(a, b, a_scale, b_scale, dtype)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v2)


def scaled_mm_unsupported(case: Case, device: DeviceKind) -> str | None:
    a, b = case.number_format("a"), case.number_format("b")
    if a.block != b.block or a.scale != "f32" or a.block[1]:
        return "torch._scaled_mm is called for scales of tensors and of rows alone"
    if device == "cuda" and (case["k"] % WIDTH_16 or case["n"] % WIDTH_16):
        return "cuBLAS takes multiples of 16"
    if device == "cuda" and a.element == b.element == "e5m2":
        return "cuBLAS multiplies no two e5m2 matrices"
    return fp8_unsupported(case, device)


@operator.variant(
    "scaled_mm",
    idea="torch._scaled_mm: cuBLASLt, CUTLASS for scales of rows, oneDNN",
    unsupported=scaled_mm_unsupported,
)
def scaled_mm(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, dtype: torch.dtype) -> Tensor:
    left, right = aligned(a), aligned(b)
    if a_scale.numel() == b_scale.numel() == 1:
        # One row and one column have scales of rows as well.
        scales = aligned(a_scale.reshape(1)).reshape(()), aligned(b_scale.reshape(1)).reshape(())
        return torch._scaled_mm(left, right.mT, *scales, out_dtype=dtype)
    return torch._scaled_mm(left, right.mT, aligned(a_scale), aligned(b_scale).mT, out_dtype=dtype)


def v3_unsupported(case: Case, device: DeviceKind) -> str | None:
    a, b = case.number_format("a"), case.number_format("b")
    if {a.element, b.element} != {"e4m3"} or {a.scale, b.scale} != {"f32"} or case.precision != "bf16":
        return "it multiplies codes in e4m3 with scales in f32, into bf16"
    if (a.block[1] or b.block[1]) and (a.block, b.block) != ((1, 128), (128, 128)):
        return "of scales of blocks it takes 1x128 of a and 128x128 of b"
    if case["k"] % COPIED_CODES or case["n"] % COPIED_RESULTS:
        return "the copy engine takes rows of whole 16 bytes"
    return hopper_unsupported()


@operator.variant(
    "v3",
    idea="wgmma on Hopper: one warpgroup copies tiles into a ring by TMA, two multiply; with scales of blocks, sums of "
    "128 codes are added in f32",
    outcome="scales of rows multiply sums that stay in the tensor cores, which round them more coarsely than f32",
    native=True,
    devices=("cuda",),
    unsupported=v3_unsupported,
)
def v3(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, dtype: torch.dtype) -> Tensor:
    y: Tensor = torch.ops.warpwatch.scaled_matmul(a, b, a_scale, b_scale)
    return y


def triton_refused(case: Case, device: DeviceKind) -> str | None:
    if case.number_format("a").is_packed:
        return "the Triton kernel reads codes of eight bits"
    return triton_unsupported(case, device) or fp8_unsupported(case, device)


try:
    import triton
    import triton.language as tl

    from ._triton_tiles import grouped_tile
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def scale_of(pointer, mask, is_e8m0: tl.constexpr):  # type: ignore[no-untyped-def]
        """Scales as f32. An e8m0 code is the exponent of a float, 255 is NaN."""
        if is_e8m0:
            code = tl.load(pointer, mask, 0).to(tl.int32)
            return tl.where(code == 255, float("nan"), (code << 23).to(tl.float32, bitcast=True))
        else:  # noqa: RET505 - Triton compiles what follows a branch, too, and then finds two types of result.
            return tl.load(pointer, mask, 0.0)

    @triton.jit  # type: ignore[untyped-decorator]
    def scaled_product(  # type: ignore[no-untyped-def]
        a,
        b,
        a_scale,
        b_scale,
        c,
        m,
        n,
        k,
        a_m,
        a_k,
        b_n,
        b_k,
        a_scale_m,
        a_scale_k,
        b_scale_n,
        b_scale_k,
        b_height,
        block_m: tl.constexpr,
        block_n: tl.constexpr,
        block_k: tl.constexpr,
        group: tl.constexpr,
        by_block: tl.constexpr,
        is_e8m0: tl.constexpr,
        widen: tl.constexpr,
    ):
        """A scale of a row serves block_k columns, or all where by_block is false, and a scale of b serves b_height
        rows. Each block of k is a sum of its own in the tensor cores, and is added in f32: that is the promotion of the
        accumulator."""
        i, j = grouped_tile(m, n, block_m, block_n, group)
        left_at, right_at = a_scale + i * a_scale_m, b_scale + j // b_height * b_scale_n
        total = tl.zeros((block_m, block_n), tl.float32)
        for block in range(0, tl.cdiv(k, block_k)):
            s = block * block_k + tl.arange(0, block_k)
            x = tl.load(a + i[:, None] * a_m + s[None, :] * a_k, (i[:, None] < m) & (s[None, :] < k), 0.0)
            y = tl.load(b + s[:, None] * b_k + j[None, :] * b_n, (s[:, None] < k) & (j[None, :] < n), 0.0)
            if widen:
                x, y = x.to(tl.float32), y.to(tl.float32)
            if by_block:
                left = scale_of(left_at + block * a_scale_k, i < m, is_e8m0)
                right = scale_of(right_at + block * b_scale_k, j < n, is_e8m0)
                total += tl.dot(x, y) * left[:, None] * right[None, :]
            else:
                total += tl.dot(x, y)
        if not by_block:
            total *= scale_of(left_at, i < m, is_e8m0)[:, None] * scale_of(right_at, j < n, is_e8m0)[None, :]
        tl.store(c + i[:, None] * n + j[None, :], total.to(c.dtype.element_ty), (i[:, None] < m) & (j[None, :] < n))


@operator.variant(
    "triton",
    idea="one sum in the tensor cores for each block of scales, added in f32",
    outcome="each block's sum leaves the tensor cores once",
    unsupported=triton_refused,
)
def triton_scaled(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, dtype: torch.dtype) -> Tensor:
    (m, k), n = a.shape, b.shape[0]
    c = torch.empty((m, n), dtype=dtype, device=a.device)
    is_e8m0 = a_scale.dtype == torch.float8_e8m0fnu
    width = 32 if is_e8m0 else 128
    # One scale for all rows, or for all columns, is read again for each of them.
    strides = [
        stride if count > 1 else 0
        for scale in (a_scale, b_scale)
        for count, stride in zip(scale.shape, scale.stride(), strict=True)
    ]
    height = 1 if b_scale.shape[0] == n else 128
    if is_e8m0:
        a_scale, b_scale = a_scale.view(torch.uint8), b_scale.view(torch.uint8)
    side = 64 if m <= 64 else 128
    grid = (triton.cdiv(m, side) * triton.cdiv(n, 128),)
    by_block = a_scale.shape[1] > 1 or b_scale.shape[1] > 1
    arguments = (a, b, a_scale, b_scale, c, m, n, k, *a.stride(), *b.stride(), *strides, height)
    tile = (side, 128, width, 8, by_block, is_e8m0, triton_interpreted())
    scaled_product[grid](*arguments, *tile, num_stages=4, num_warps=8)
    return c
