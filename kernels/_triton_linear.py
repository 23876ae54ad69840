"""A product of matrices with any strides in Triton, and x · Wᵀ + b with its gradients on top of it; shared by several
operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._gradients import once_differentiable

try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def product_kernel(  # type: ignore[no-untyped-def]
        a,
        b,
        bias,
        c,
        m,
        n,
        k,
        a_m,
        a_k,
        b_k,
        b_n,
        c_m,
        bias_m,
        exact: tl.constexpr,
        has_bias: tl.constexpr,
        block_m: tl.constexpr,
        block_n: tl.constexpr,
        block_k: tl.constexpr,
    ):
        """c[i, j] = sum over l of a[i, l] * b[l, j] + bias[i, j] for one tile of c; bias_m is 0 for one row of bias."""
        rows = tl.program_id(1) * block_m + tl.arange(0, block_m)
        columns = tl.program_id(0) * block_n + tl.arange(0, block_n)
        row_at, column_at = rows.to(tl.int64)[:, None], columns.to(tl.int64)[None, :]
        total = tl.zeros((block_m, block_n), dtype=tl.float32)
        for start in range(0, k, block_k):
            depth = (start + tl.arange(0, block_k)).to(tl.int64)
            left = tl.load(a + row_at * a_m + depth[None, :] * a_k, (row_at < m) & (depth[None, :] < k), 0.0)
            right = tl.load(b + depth[:, None] * b_k + column_at * b_n, (depth[:, None] < k) & (column_at < n), 0.0)
            total = tl.dot(left, right, total, input_precision="ieee" if exact else "tf32")
        if has_bias:
            inside = (row_at < m) & (column_at < n)
            total += tl.load(bias + row_at * bias_m + column_at, inside, 0.0).to(tl.float32)
        tl.store(c + row_at * c_m + column_at, total.to(c.dtype.element_ty), (row_at < m) & (column_at < n))


class TritonLinear(torch.autograd.Function):
    """x · Wᵀ + b, where b is a row or a matrix; both gradients of the product are products of the same kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.bias_dims = 0 if b is None else b.dim()
        return product(x, w.t(), b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        g = gradients[0]
        return product(g, w), product(g.t(), x), (None, g.sum(0), g)[ctx.bias_dims]


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a · b + bias, which may be a row or a matrix, in tf32 where torch's own products may use it, else in f32."""
    (m, k), n = a.shape, b.shape[1]
    c = a.new_empty((m, n))
    if c.numel() == 0:
        return c
    exact = torch.get_float32_matmul_precision() == "highest"
    block_m = 16 if m <= 16 else 64
    grid = (triton.cdiv(n, 64), triton.cdiv(m, block_m))
    added = None if bias is None else bias.contiguous()
    bias_m = n if added is not None and added.dim() == 2 else 0
    product_kernel[grid](
        a,
        b,
        added,
        c,
        m,
        n,
        k,
        *a.stride(),
        *b.stride(),
        c.stride(0),
        bias_m,
        exact=exact,
        has_bias=added is not None,
        block_m=block_m,
        block_n=64,
        block_k=64,
    )
    return c
