"""A GRU layer's scan in Triton: cells and their gradient; a library computes the products."""

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

    @triton.jit
    def sigmoid(x):  # type: ignore[no-untyped-def]
        return 1.0 / (1.0 + tl.exp(-x))

    @triton.jit  # type: ignore[untyped-decorator]
    def cell_kernel(gates, products, bias, before, out, saved, count, n, block: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        inside = i < count
        row, j = i // n, i % n
        at, kept = row * 3 * n + j, row * 4 * n + j
        r = sigmoid(tl.load(gates + at, inside) + tl.load(products + at, inside) + tl.load(bias + j, inside))
        z = sigmoid(
            tl.load(gates + at + n, inside) + tl.load(products + at + n, inside) + tl.load(bias + j + n, inside)
        )
        q = tl.load(products + at + 2 * n, inside) + tl.load(bias + j + 2 * n, inside)
        # Twice a sigmoid less one is the hyperbolic tangent, which Triton has only as a call into a CUDA library.
        t = 2.0 * sigmoid(2.0 * (tl.load(gates + at + 2 * n, inside) + r * q)) - 1.0
        tl.store(out + i, (1.0 - z) * t + z * tl.load(before + i, inside), inside)
        tl.store(saved + kept, r, inside)
        tl.store(saved + kept + n, z, inside)
        tl.store(saved + kept + 2 * n, t, inside)
        tl.store(saved + kept + 3 * n, q, inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def slope_kernel(  # type: ignore[no-untyped-def]
        gradient, later, before, saved, d_input, d_hidden, carry, count, n, block: tl.constexpr
    ):
        i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        inside = i < count
        row, j = i // n, i % n
        at, kept = row * 3 * n + j, row * 4 * n + j
        r, z = tl.load(saved + kept, inside), tl.load(saved + kept + n, inside)
        t, q = tl.load(saved + kept + 2 * n, inside), tl.load(saved + kept + 3 * n, inside)
        g = tl.load(gradient + i, inside) + tl.load(later + i, inside)
        d_n = g * (1.0 - z) * (1.0 - t * t)
        d_r = d_n * q * r * (1.0 - r)
        d_z = g * (tl.load(before + i, inside) - t) * z * (1.0 - z)
        tl.store(d_input + at, d_r, inside)
        tl.store(d_input + at + n, d_z, inside)
        tl.store(d_input + at + 2 * n, d_n, inside)
        tl.store(d_hidden + at, d_r, inside)
        tl.store(d_hidden + at + n, d_z, inside)
        tl.store(d_hidden + at + 2 * n, d_n * r, inside)
        tl.store(carry + i, g * z, inside)


BLOCK = 256


class TritonScan(torch.autograd.Function):
    """The loop over time, forward and backward, with a product and a kernel per step."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, h0: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        gates, h0, bias = gates.contiguous(), h0.contiguous(), bias.contiguous()
        steps, batch, n = gates.shape[0], *h0.shape
        out, saved = gates.new_empty((steps, batch, n)), gates.new_empty((steps, batch, 4 * n))
        grid = (triton.cdiv(batch * n, BLOCK),)
        for t in range(steps if batch * n else 0):
            before = out[t - 1] if t else h0
            cell_kernel[grid](gates[t], before @ w.t(), bias, before, out[t], saved[t], batch * n, n, BLOCK)
        ctx.save_for_backward(h0, w, out, saved)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        h0, w, out, saved = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        steps, batch, n = out.shape
        d_input, d_hidden = out.new_empty((steps, batch, 3 * n)), out.new_empty((steps, batch, 3 * n))
        later, carry = torch.zeros_like(h0), torch.empty_like(h0)
        grid = (triton.cdiv(batch * n, BLOCK),)
        for t in reversed(range(steps)):
            before = out[t - 1] if t else h0
            slope_kernel[grid](
                gradient[t], later, before, saved[t], d_input[t], d_hidden[t], carry, batch * n, n, BLOCK
            )
            later = torch.addmm(carry, d_hidden[t], w)
        before, slopes = torch.cat([h0[None], out[:-1]]).flatten(0, 1), d_hidden.flatten(0, 1)
        return d_input, later, slopes.t() @ before, slopes.sum(0)


def triton_scan(gates: Tensor, h: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    out: Tensor = TritonScan.apply(gates, h, w, bias)  # type: ignore[no-untyped-call]
    return out
