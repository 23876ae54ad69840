"""y = A · Bᵀ of int8 matrices, summed exactly in 32 bits, times the scales of both sides.

A is (m, k) and B is (n, k), each row after row. Without scales the result is the sum itself, in i32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, case
from warpwatch.peers import compile_unsupported, triton_interpreted, triton_unsupported
from warpwatch.quantization import format_of

from ._aligned import aligned
from ._compiled import compiled

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32}
MOST_ROWS, MULTIPLE = 16, 8
"""torch._int_mm on CUDA takes more rows than this, and other sides that are multiples of eight."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    a, a_scale = make.codes(case["a"], case["m"], case["k"])
    b, b_scale = make.codes(case["b"], case["n"], case["k"])
    return {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale, "dtype": DTYPES[case.precision]}


def case_of(a: Tensor, b: Tensor, a_scale: Tensor | None, b_scale: Tensor | None, dtype: torch.dtype) -> Case:
    m, k = a.shape
    return case(m=m, n=b.shape[0], k=k, a=format_of(a, a_scale), b=format_of(b, b_scale))


def reference(a: Tensor, b: Tensor, a_scale: Tensor | None, b_scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Sums of whole numbers are exact in float64 below 2 to the 53rd."""
    total = a.double() @ b.double().mT
    if a_scale is None or b_scale is None:
        return total.to(torch.int32)
    y = total * a_scale.double() * b_scale.double().mT
    return y if a_scale.dtype == torch.float64 else y.to(dtype)


def cost(case: Case) -> Cost:
    m, n, k = case["m"], case["n"], case["k"]
    read = case.number_format("a").count_bytes(m, k) + case.number_format("b").count_bytes(n, k)
    return Cost(2 * m * n * k, read + case.element_bytes * m * n)


def sized(precision: Any, m: int, n: int, k: int, a: str = "i8-row", b: str = "i8-row") -> Case:
    return case(precision, m=m, n=n, k=k, a=a, b=b)


QUICK = (
    sized("bf16", 64, 96, 256),
    sized("f32", 32, 64, 512, "i8-row", "i8-tensor"),
    sized("i32", 64, 96, 256, "i8", "i8"),
)
FULL = (
    *QUICK,
    sized("bf16", 4096, 4096, 4096),
    sized("bf16", 8192, 8192, 8192),
    sized("bf16", 17, 4096, 4096),
    sized("i32", 4096, 4096, 4096, "i8", "i8"),
)
EDGE = (
    sized("bf16", 1, 8, 8),
    sized("f16", 17, 31, 129),
    sized("i32", 33, 17, 4096, "i8", "i8"),
    sized("f32", 1, 1, 1, "i8-tensor", "i8-row"),
)

operator = Operator(
    "int8_matmul",
    "A product of int8 matrices, exact in 32 bits, times the scales of rows or of whole matrices.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    case_of=case_of,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    batch="m",
)


def scaled(total: Tensor, a_scale: Tensor | None, b_scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Sums in i32 times the scales of their row and column."""
    if a_scale is None or b_scale is None:
        return total
    return (total.float() * a_scale * b_scale.mT).to(dtype)


@operator.variant("v1", idea="torch.mm of the codes in float64")
def v1(a: Tensor, b: Tensor, a_scale: Tensor | None, b_scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    return scaled((a.double() @ b.double().mT).to(torch.int32), a_scale, b_scale, dtype)


def int_mm_unsupported(case: Case, device: DeviceKind) -> str | None:
    if device == "cuda" and (case["m"] <= MOST_ROWS or case["k"] % MULTIPLE or case["n"] % MULTIPLE):
        return "cuBLAS takes 17 rows or more, and other sides that are multiples of 8"
    return None


@operator.variant("v2", idea="torch._int_mm, then the scales", unsupported=int_mm_unsupported)
def v2(a: Tensor, b: Tensor, a_scale: Tensor | None, b_scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    return by_torch(aligned(a), aligned(b), a_scale, b_scale, dtype)


def by_torch(a: Tensor, b: Tensor, a_scale: Tensor | None, b_scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    return scaled(torch._int_mm(a, b.mT), a_scale, b_scale, dtype)


@operator.variant(
    "compile",
    idea="torch.compile of _int_mm and the scales",
    unsupported=lambda case, device: compile_unsupported(case, device) or int_mm_unsupported(case, device),
)
def compiled_v2(a: Tensor, b: Tensor, a_scale: Tensor | None, b_scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    return _compiled()(a, b, a_scale, b_scale, dtype)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(by_torch)


try:
    import triton
    import triton.language as tl

    from ._triton_tiles import grouped_tile
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def int8_product(  # type: ignore[no-untyped-def]
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
        b_scale_n,
        is_scaled: tl.constexpr,
        block_m: tl.constexpr,
        block_n: tl.constexpr,
        block_k: tl.constexpr,
        group: tl.constexpr,
        widen: tl.constexpr,
    ):
        i, j = grouped_tile(m, n, block_m, block_n, group)
        total = tl.zeros((block_m, block_n), tl.int32)
        for start in range(0, k, block_k):
            s = start + tl.arange(0, block_k)
            x = tl.load(a + i[:, None] * a_m + s[None, :] * a_k, (i[:, None] < m) & (s[None, :] < k), 0)
            y = tl.load(b + s[:, None] * b_k + j[None, :] * b_n, (s[:, None] < k) & (j[None, :] < n), 0)
            if widen:
                # The interpreter multiplies in the type of its operands.
                total += tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="ieee").to(tl.int32)
            else:
                total = tl.dot(x, y, total, out_dtype=tl.int32)
        inside = (i[:, None] < m) & (j[None, :] < n)
        if is_scaled:
            left = tl.load(a_scale + i * a_scale_m, i < m, 0.0)
            right = tl.load(b_scale + j * b_scale_n, j < n, 0.0)
            scaled = total.to(tl.float32) * left[:, None] * right[None, :]
            tl.store(c + i[:, None] * n + j[None, :], scaled.to(c.dtype.element_ty), inside)
        else:
            tl.store(c + i[:, None] * n + j[None, :], total, inside)


@operator.variant(
    "triton",
    idea="sums in i32 in the tensor cores, scales in the same kernel",
    outcome="sums are never written to memory",
    unsupported=triton_unsupported,
)
def triton_int8(a: Tensor, b: Tensor, a_scale: Tensor | None, b_scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    (m, k), n = a.shape, b.shape[0]
    c = torch.empty((m, n), dtype=dtype, device=a.device)
    is_scaled = a_scale is not None and b_scale is not None
    strides = [0 if s is None or len(s) == 1 else s.stride(0) for s in (a_scale, b_scale)]
    # Few rows read B once and wait for it: narrow tiles make enough programs, and long ones enough loads in flight.
    rows, columns, depth, stages, warps = (32, 32, 256, 5, 4) if m <= 64 else (128, 128, 64, 3, 8)
    grid = (triton.cdiv(m, rows) * triton.cdiv(n, columns),)
    # Without scales the kernel reads none, whatever their pointer is.
    pointers = (a, b, a_scale, b_scale, c) if is_scaled else (a, b, a, b, c)
    sizes = (m, n, k, *a.stride(), *b.stride(), *strides)
    tile = (rows, columns, depth, 8, triton_interpreted())
    int8_product[grid](*pointers, *sizes, is_scaled, *tile, num_stages=stages, num_warps=warps)
    return c
