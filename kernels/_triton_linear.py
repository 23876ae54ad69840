"""A product of matrices in Triton, and x · Wᵀ + b with its gradients on top of it; shared by several operators."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def load_tile(  # type: ignore[no-untyped-def]
        base, row, column, rows, columns, step, by_columns: tl.constexpr, aligned: tl.constexpr
    ):
        """A tile of a matrix that lies row by row or column by column, zero beyond its ends; see `_Laid`."""
        at = base + (row + column * step if by_columns else row * step + column)
        if aligned:
            at = tl.multiple_of(at, (16, 1) if by_columns else (1, 16))
        return tl.load(at, (row < rows) & (column < columns), 0.0)

    # Triton compiles a kernel anew for each combination of numbers that are 1, multiples of 16 or neither, and of
    # addresses that are multiples of 16 bytes or not. What makes it faster is said by options instead, which takes half
    # as many kernels.
    @triton.jit(  # type: ignore[untyped-decorator]
        do_not_specialize=["n", "k", "a_step", "b_step"], do_not_specialize_on_alignment=["a", "b", "bias"]
    )
    def product_kernel(  # type: ignore[no-untyped-def]
        a,
        b,
        bias,
        c,
        m,
        n,
        k,
        a_step,
        b_step,
        a_by_columns: tl.constexpr,
        b_by_columns: tl.constexpr,
        a_aligned: tl.constexpr,
        b_aligned: tl.constexpr,
        n_even: tl.constexpr,
        k_even: tl.constexpr,
        exact: tl.constexpr,
        bias_dims: tl.constexpr,
        block_m: tl.constexpr,
        block_n: tl.constexpr,
        block_k: tl.constexpr,
    ):
        """c[i, j] = sum over l of a[i, l] * b[l, j], plus bias[j] or bias[i, j] by its dimensions, in a tile of c."""
        # The compiler sees multiples of 16.
        n = n // 16 * 16 if n_even else n
        k = k // 16 * 16 if k_even else k
        row = (tl.program_id(1) * block_m + tl.arange(0, block_m)).to(tl.int64)[:, None]
        column = (tl.program_id(0) * block_n + tl.arange(0, block_n)).to(tl.int64)[None, :]
        total = tl.zeros((block_m, block_n), dtype=tl.float32)
        for start in range(0, k, block_k):
            depth = (start + tl.arange(0, block_k)).to(tl.int64)
            left = load_tile(a, row, depth[None, :], m, k, a_step, a_by_columns, a_aligned)
            right = load_tile(b, depth[:, None], column, k, n, b_step, b_by_columns, b_aligned)
            total = tl.dot(left, right, total, input_precision="ieee" if exact else "tf32")
        inside = (row < m) & (column < n)
        if bias_dims == 1:
            total += tl.load(bias + column, column < n, 0.0).to(tl.float32)
        elif bias_dims == 2:
            total += tl.load(bias + row * n + column, inside, 0.0).to(tl.float32)
        tl.store(c + row * n + column, total.to(c.dtype.element_ty), inside)


class _Laid(NamedTuple):
    """A matrix as the kernel reads it: by columns if those lie in whole memory, else by rows, `step` elements from one
    to the next. aligned: whether each of these begins at 16 bytes, of which a thread then reads as many at once."""

    matrix: Tensor
    step: int
    by_columns: bool
    aligned: bool


def _laid(matrix: Tensor) -> _Laid:
    if 1 not in matrix.stride():
        matrix = matrix.contiguous()
    by_columns = matrix.stride(1) != 1
    step = matrix.stride(1 if by_columns else 0)
    return _Laid(matrix, step, by_columns, step % 16 == matrix.data_ptr() % 16 == 0)


class TritonLinear(torch.autograd.Function):
    """x · Wᵀ + b, where b is a row or a matrix; both gradients of the product are products of the same kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.bias_dims = 0 if b is None else b.dim()
        return product(x, w.t(), b)

    @staticmethod
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
    left, right = _laid(a), _laid(b)
    block_m = 16 if m <= 16 else 64
    product_kernel[triton.cdiv(n, 64), triton.cdiv(m, block_m)](
        left.matrix,
        right.matrix,
        None if bias is None else bias.contiguous(),
        c,
        m,
        n,
        k,
        left.step,
        right.step,
        a_by_columns=left.by_columns,
        b_by_columns=right.by_columns,
        a_aligned=left.aligned,
        b_aligned=right.aligned,
        n_even=n % 16 == 0,
        k_even=k % 16 == 0,
        exact=torch.get_float32_matmul_precision() == "highest",
        bias_dims=0 if bias is None else bias.dim(),
        block_m=block_m,
        block_n=64,
        block_k=64,
    )
    return c
