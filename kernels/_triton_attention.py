"""Attention in Triton: one kernel forward, one for dQ and one for dK and dV. Probabilities are computed anew backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpwatch.peers import triton_interpreted

BLOCK = 64
HALF = 32
"""Rows of a tile where 64 of them, three products deep, need more shared memory than there is: wide heads in f32."""


@triton.jit  # type: ignore[untyped-decorator]
def _product(x, y, precision: tl.constexpr, widen: tl.constexpr):  # type: ignore[no-untyped-def]
    if widen:
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, y, input_precision=precision)


@triton.jit  # type: ignore[untyped-decorator]
def _rows(base, first, count, d, block: tl.constexpr, wide: tl.constexpr):  # type: ignore[no-untyped-def]
    """`block` contiguous rows from `first` on; what does not exist is zero."""
    i, c = first + tl.arange(0, block), tl.arange(0, wide)
    return tl.load(base + i.to(tl.int64)[:, None] * d + c[None, :], (i[:, None] < count) & (c[None, :] < d), 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _store(base, value, first, count, d, block: tl.constexpr, wide: tl.constexpr):  # type: ignore[no-untyped-def]
    i, c = first + tl.arange(0, block), tl.arange(0, wide)
    inside = (i[:, None] < count) & (c[None, :] < d)
    tl.store(base + i.to(tl.int64)[:, None] * d + c[None, :], value.to(base.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _seen(i, j, keys, causal: tl.constexpr):  # type: ignore[no-untyped-def]
    inside = (j[None, :] < keys) & (i[:, None] >= 0)
    if causal:
        inside = inside & (j[None, :] <= i[:, None])
    return inside


@triton.jit  # type: ignore[untyped-decorator]
def forward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, out, log_sum, queries, keys, d, scale,
    causal: tl.constexpr, block: tl.constexpr, wide: tl.constexpr, precision: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    head, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * block
    own = _rows(q + head * queries * d, first, queries, d, block, wide)
    i = first + tl.arange(0, block)
    highest = tl.full((block,), float("-inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    sums = tl.zeros((block, wide), tl.float32)
    end = tl.minimum(keys, first + block) if causal else keys
    for start in range(0, end, block):
        j = start + tl.arange(0, block)
        scores = _product(own, tl.trans(_rows(k + head * keys * d, start, keys, d, block, wide)), precision, widen) * scale
        scores = tl.where(_seen(i, j, keys, causal), scores, float("-inf"))
        top = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(top == float("-inf"), 0.0, top)
        p = tl.exp(scores - base[:, None])
        shrink = tl.exp(highest - base)
        total = total * shrink + tl.sum(p, 1)
        values = _rows(v + head * keys * d, start, keys, d, block, wide)
        sums = sums * shrink[:, None] + _product(p.to(values.dtype), values, precision, widen)
        highest = top
    _store(out + head * queries * d, sums / total[:, None], first, queries, d, block, wide)
    tl.store(log_sum + head * queries + i, highest + tl.log(total), i < queries)


@triton.jit  # type: ignore[untyped-decorator]
def _gradients(  # type: ignore[no-untyped-def]
    own, g, theirs, values, i, j, sums, delta, keys, scale,
    causal: tl.constexpr, precision: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    """Probabilities of queries i for keys j, and the gradients of their scores."""
    scores = _product(own, tl.trans(theirs), precision, widen) * scale
    p = tl.where(_seen(i, j, keys, causal), tl.exp(scores - sums[:, None]), 0.0)
    return p, p * (_product(g, tl.trans(values), precision, widen) - delta[:, None]) * scale


@triton.jit  # type: ignore[untyped-decorator]
def query_kernel(  # type: ignore[no-untyped-def]
    g, q, k, v, log_sum, delta, dq, queries, keys, d, scale,
    causal: tl.constexpr, block: tl.constexpr, wide: tl.constexpr, precision: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    head, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * block
    own = _rows(q + head * queries * d, first, queries, d, block, wide)
    incoming = _rows(g + head * queries * d, first, queries, d, block, wide)
    i = first + tl.arange(0, block)
    numbers = head * queries + i
    sums, deltas = tl.load(log_sum + numbers, i < queries, 0.0), tl.load(delta + numbers, i < queries, 0.0)
    total = tl.zeros((block, wide), tl.float32)
    end = tl.minimum(keys, first + block) if causal else keys
    for start in range(0, end, block):
        theirs = _rows(k + head * keys * d, start, keys, d, block, wide)
        values = _rows(v + head * keys * d, start, keys, d, block, wide)
        j = start + tl.arange(0, block)
        _p, ds = _gradients(own, incoming, theirs, values, i, j, sums, deltas, keys, scale, causal, precision, widen)
        total += _product(ds.to(theirs.dtype), theirs, precision, widen)
    _store(dq + head * queries * d, total, first, queries, d, block, wide)


@triton.jit  # type: ignore[untyped-decorator]
def key_kernel(  # type: ignore[no-untyped-def]
    g, q, k, v, log_sum, delta, dk, dv, queries, keys, d, scale,
    causal: tl.constexpr, block: tl.constexpr, wide: tl.constexpr, precision: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    head, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * block
    theirs = _rows(k + head * keys * d, first, keys, d, block, wide)
    values = _rows(v + head * keys * d, first, keys, d, block, wide)
    j = first + tl.arange(0, block)
    k_total = tl.zeros((block, wide), tl.float32)
    v_total = tl.zeros((block, wide), tl.float32)
    begin = first if causal else 0
    for start in range(begin, queries, block):
        own = _rows(q + head * queries * d, start, queries, d, block, wide)
        incoming = _rows(g + head * queries * d, start, queries, d, block, wide)
        i = start + tl.arange(0, block)
        numbers = head * queries + i
        sums, deltas = tl.load(log_sum + numbers, i < queries, float("inf")), tl.load(delta + numbers, i < queries, 0.0)
        p, ds = _gradients(own, incoming, theirs, values, i, j, sums, deltas, keys, scale, causal, precision, widen)
        v_total += _product(tl.trans(p.to(incoming.dtype)), incoming, precision, widen)
        k_total += _product(tl.trans(ds.to(own.dtype)), own, precision, widen)
    _store(dk + head * keys * d, k_total, first, keys, d, block, wide)
    _store(dv + head * keys * d, v_total, first, keys, d, block, wide)


def _options(q: Tensor, causal: bool) -> dict[str, Any]:
    # Full f32 would leave the tensor cores idle; three tf32 products keep its precision.
    precision = "tf32x3" if q.dtype == torch.float32 else "ieee"
    wide = max(16, triton.next_power_of_2(q.shape[3]))
    return {
        "causal": causal,
        "block": _block(q),
        "wide": wide,
        "precision": precision,
        "widen": triton_interpreted(),
        "num_warps": 4,
    }


def _block(t: Tensor) -> int:
    return HALF if t.dtype == torch.float32 and t.shape[3] > 64 else BLOCK


def _grid(t: Tensor) -> tuple[int, int]:
    return triton.cdiv(t.shape[2], _block(t)), t.shape[0] * t.shape[1]


class TritonAttention(torch.autograd.Function):
    """The kernels on contiguous heads."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out, log_sum = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
        sizes = (q.shape[2], k.shape[2], q.shape[3], q.shape[3] ** -0.5)
        forward_kernel[_grid(q)](q, k, v, out, log_sum, *sizes, **_options(q, causal))
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.causal, ctx.sizes = causal, sizes
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, log_sum = ctx.saved_tensors
        g = gradients[0].contiguous()
        delta = (g.float() * out.float()).sum(3)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        options = _options(q, ctx.causal)
        query_kernel[_grid(q)](g, q, k, v, log_sum, delta, dq, *ctx.sizes, **options)
        key_kernel[_grid(k)](g, q, k, v, log_sum, delta, dk, dv, *ctx.sizes, **options)
        return dq, dk, dv, None
