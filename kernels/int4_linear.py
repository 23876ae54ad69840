"""y = x · Wᵀ, where W has four bits and a scale for each group of a row: the weights of a language model at inference.

W is (out, in), two codes in a byte, that of the even column in the low bits, and a code is a number from -8 to 7. With
one row of x, reading W takes nearly all of the time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, case
from warpwatch.peers import compile_unsupported, triton_interpreted, triton_unsupported
from warpwatch.quantization import dequantize, format_of, spread, unpack

from ._aligned import aligned
from ._compiled import compiled

INNER_TILES = 8
"""Of the layout that torch's CUDA kernel reads: so many tiles of 16 columns lie together."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    w, scale = make.codes(case["w"], case["out"], case["in"])
    return {"x": make.normal(case["rows"], case["in"], scale=case["in"] ** -0.5), "w": w, "scale": scale}


def case_of(x: Tensor, w: Tensor, scale: Tensor, **_prepared: Any) -> Case:
    return sized("bf16", x.shape[0], x.shape[1], w.shape[0], format_of(w, scale, "i4"))


def reference(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return (x.double() @ dequantize(w, scale, "i4").mT).to(x.dtype)


def cost(case: Case) -> Cost:
    rows, columns, out = case["rows"], case["in"], case["out"]
    read = case.number_format("w").count_bytes(out, columns) + case.element_bytes * rows * columns
    return Cost(2 * rows * columns * out, read + case.element_bytes * rows * out)


@functools.cache
def register_native() -> None:
    """Shapes for torch.compile for the torch operator that the library defines."""

    @torch.library.register_fake("warpwatch::int4_linear")  # type: ignore[untyped-decorator]
    def fake(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        return x.new_empty(x.shape[0], w.shape[0])


def sized(precision: Any, rows: int, columns: int, out: int, w: str = "i4g128") -> Case:
    return case(precision, **{"rows": rows, "in": columns, "out": out, "w": w, "x": precision})


QUICK = (
    sized("bf16", 1, 512, 256),
    sized("bf16", 16, 256, 128, "i4g32"),
    sized("f32", 4, 512, 64),
)
FULL = (
    *QUICK,
    *(sized("bf16", rows, 4096, 4096) for rows in (1, 8, 128)),
    sized("bf16", 1, 4096, 14336),
    sized("bf16", 1, 8192, 8192, "i4g64"),
)
EDGE = (
    sized("bf16", 1, 32, 1, "i4g32"),
    sized("f32", 3, 160, 5, "i4g32"),
    sized("f16", 33, 128, 17, "i4g64"),
    sized("f32", 2, 200, 3),
)

operator = Operator(
    "int4_linear",
    "A linear layer whose weights have four bits, with a scale for each group.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    case_of=case_of,
    depth=lambda case: int(case["in"]),
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    native=register_native,
    batch="rows",
)


@operator.variant("v1", idea="dequantizes W to f32, then torch.mm")
def v1(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    codes = unpack(w).to(torch.int8)
    weights = torch.where(codes >= 8, codes - 16, codes).float() * spread(scale, *codes.shape)
    return (x.float() @ weights.mT).to(x.dtype)


def prepare_int4pack(x: Tensor, w: Tensor, scale: Tensor) -> dict[str, Any]:
    """W in the layout that torch reads, with unsigned codes, and for each group a scale and its middle in bf16."""
    # A code with its sign bit turned is larger by 8.
    unsigned = unpack(w) ^ 8
    if w.is_cuda:
        packed = torch._convert_weight_to_int4pack((unsigned[:, 0::2] << 4) | unsigned[:, 1::2], INNER_TILES)
    else:
        packed = torch._convert_weight_to_int4pack_for_cpu(unsigned.int(), INNER_TILES)
    groups = scale.mT.bfloat16()
    return {"packed": packed, "groups": torch.stack([groups, torch.zeros_like(groups)], -1).contiguous()}


def int4pack_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case.precision != "bf16":
        return "torch's kernel takes bf16"
    if case["in"] % (16 * INNER_TILES) or case["out"] % 16:
        return "torch's kernel takes multiples of 128 columns and of 16 outputs"
    return None


@operator.variant(
    "int4pack", idea="torch's kernel for int4 weights", prepare=prepare_int4pack, unsupported=int4pack_unsupported
)
def int4pack(x: Tensor, w: Tensor, scale: Tensor, packed: Tensor, groups: Tensor) -> Tensor:
    group = 2 * w.shape[1] // scale.shape[1]
    x = aligned(x.contiguous())
    if w.is_cuda:
        return torch._weight_int4pack_mm(x, packed, group, groups)
    return torch._weight_int4pack_mm_for_cpu(x, packed, group, groups)


@operator.variant(
    "v3",
    idea="CUDA: a warp reads two rows of W and decodes them in registers; C++: a row of W is decoded for all rows of x",
    outcome="with one row of x, reading W",
    native=True,
)
def v3(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    y: Tensor = torch.ops.warpwatch.int4_linear(x, w, scale)
    return y


@operator.variant("compile", idea="torch.compile of v1", unsupported=compile_unsupported)
def compiled_v1(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return _compiled()(x, w, scale)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v1)


try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def int4_product(  # type: ignore[no-untyped-def]
        x,
        w,
        scale,
        y,
        rows,
        out,
        columns,
        x_m,
        x_k,
        w_n,
        w_k,
        scale_n,
        scale_k,
        group: tl.constexpr,
        block_m: tl.constexpr,
        block_n: tl.constexpr,
        widen: tl.constexpr,
    ):
        """A sum for each group: even columns of x times the low bits, odd ones times the high bits."""
        half: tl.constexpr = group // 2
        i = tl.program_id(1).to(tl.int64) * block_m + tl.arange(0, block_m)
        j = tl.program_id(0).to(tl.int64) * block_n + tl.arange(0, block_n)
        total = tl.zeros((block_m, block_n), tl.float32)
        for block in range(0, tl.cdiv(columns, group)):
            s = block * half + tl.arange(0, half)
            inside = (i[:, None] < rows) & (2 * s[None, :] < columns)
            even = tl.load(x + i[:, None] * x_m + 2 * s[None, :] * x_k, inside, 0.0)
            odd = tl.load(x + i[:, None] * x_m + (2 * s[None, :] + 1) * x_k, inside, 0.0)
            pair = tl.load(w + s[:, None] * w_k + j[None, :] * w_n, (2 * s[:, None] < columns) & (j[None, :] < out), 0)
            # Both shifts are of signed numbers, so that the sign bit of a code fills the bits above it.
            low = (pair.to(tl.int32) << 28) >> 28
            high = (pair.to(tl.int32) << 24) >> 28
            if widen:
                even, odd = even.to(tl.float32), odd.to(tl.float32)
            part = tl.dot(even, low.to(even.dtype), input_precision="ieee")
            part = tl.dot(odd, high.to(even.dtype), part, input_precision="ieee")
            total += part * tl.load(scale + j * scale_n + block * scale_k, j < out, 0.0)[None, :]
        tl.store(
            y + i[:, None] * out + j[None, :], total.to(y.dtype.element_ty), (i[:, None] < rows) & (j[None, :] < out)
        )


@operator.variant(
    "triton",
    idea="tensor cores multiply codes, a scale follows each group",
    outcome="weights are never written in a wider format",
    unsupported=triton_unsupported,
)
def triton_int4(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    (rows, columns), out = x.shape, w.shape[0]
    y = x.new_empty(rows, out)
    # A row without a second group has a group of any width that holds it.
    groups = scale.shape[1]
    group = next(side for side in (32, 64, 128) if -(-columns // side) == groups or side == 128)
    block_m, block_n = (16 if rows <= 16 else 64), 64
    grid = (triton.cdiv(out, block_n), triton.cdiv(rows, block_m))
    arguments = (x, w, scale, y, rows, out, columns, *x.stride(), *w.stride(), *scale.stride())
    int4_product[grid](*arguments, group, block_m, block_n, triton_interpreted(), num_warps=4)
    return y
