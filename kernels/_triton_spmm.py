"""Sparse times dense in Triton, with both gradients."""

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
    def rows_kernel(crow, col, values, b, y, n, batch: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        j = tl.program_id(1) * block + tl.arange(0, block)
        end = tl.load(crow + row + 1)
        total = tl.zeros((block,), y.dtype.element_ty)
        for first in range(tl.load(crow + row), end, batch):
            p = first + tl.arange(0, batch)
            places = tl.load(col + p, p < end, 0).to(tl.int64)[:, None] * n + j[None, :]
            dense = tl.load(b + places, (p < end)[:, None] & (j < n)[None, :], 0.0)
            total += tl.sum(tl.load(values + p, p < end, 0.0)[:, None] * dense, 0)
        tl.store(y + row * n + j, total, j < n)

    @triton.jit  # type: ignore[untyped-decorator]
    def scatter_kernel(crow, col, values, g, d, n, batch: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        j = tl.program_id(1) * block + tl.arange(0, block)
        end = tl.load(crow + row + 1)
        mine = tl.load(g + row * n + j, j < n, 0.0)
        for first in range(tl.load(crow + row), end, batch):
            p = first + tl.arange(0, batch)
            places = tl.load(col + p, p < end, 0).to(tl.int64)[:, None] * n + j[None, :]
            products = tl.load(values + p, p < end, 0.0)[:, None] * mine[None, :]
            tl.atomic_add(d + places, products, (p < end)[:, None] & (j < n)[None, :])

    @triton.jit  # type: ignore[untyped-decorator]
    def dots_kernel(crow, col, g, b, d, n, batch: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        end = tl.load(crow + row + 1)
        for first in range(tl.load(crow + row), end, batch):
            p = first + tl.arange(0, batch)
            theirs = tl.load(col + p, p < end, 0).to(tl.int64)[:, None] * n
            total = tl.zeros((batch,), d.dtype.element_ty)
            for at in range(0, n, block):
                j = at + tl.arange(0, block)
                dense = tl.load(b + theirs + j[None, :], (p < end)[:, None] & (j < n)[None, :], 0.0)
                total += tl.sum(tl.load(g + row * n + j, j < n, 0.0)[None, :] * dense, 1)
            tl.store(d + p, total, p < end)


class TritonSpmm(torch.autograd.Function):
    """The Triton kernels with both gradients."""

    @staticmethod
    def forward(ctx: Any, crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> Tensor:
        operands = [t.contiguous() for t in (crow, col, values, b)]
        ctx.save_for_backward(*operands)
        y = b.new_empty(crow.numel() - 1, b.shape[1])
        if y.numel():
            rows_kernel[_grid(crow, b)](*operands, y, b.shape[1], 32, 128)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        crow, col, values, b = ctx.saved_tensors
        g = gradients[0].contiguous()
        of_values, of_b = values.new_empty(values.shape), b.new_zeros(b.shape)
        if values.numel() and b.numel():
            scatter_kernel[_grid(crow, b)](crow, col, values, g, of_b, b.shape[1], 32, 128)
            dots_kernel[(crow.numel() - 1,)](crow, col, g, b, of_values, b.shape[1], 32, 128)
        return None, None, of_values, of_b


def _grid(crow: Tensor, b: Tensor) -> tuple[int, int]:
    return crow.numel() - 1, triton.cdiv(b.shape[1], 128)
