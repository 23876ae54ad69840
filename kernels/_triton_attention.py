"""Attention in Triton: one kernel forward, one for dQ and one for dK and dV. Probabilities are computed anew backward.

A program owns a tile of queries (of keys for dK and dV) and the other side passes by. Only tiles on the causal diagonal look at which
pairs are seen, where `even` says that no tile reaches over an end. Scores are in powers of two, whose exponential is one instruction.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpwatch.peers import triton_interpreted


@triton.jit  # type: ignore[untyped-decorator]
def _product(x, y, precision: tl.constexpr, widen: tl.constexpr):  # type: ignore[no-untyped-def]
    if widen:
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, y, input_precision=precision)


@triton.jit  # type: ignore[untyped-decorator]
def _rows(base, first, count, d, tile: tl.constexpr, wide: tl.constexpr, even: tl.constexpr):  # type: ignore[no-untyped-def]
    """`tile` contiguous rows from `first` on; what does not exist is zero."""
    i, c = first + tl.arange(0, tile), tl.arange(0, wide)
    if even:
        return tl.load(base + i.to(tl.int64)[:, None] * wide + c[None, :])
    return tl.load(base + i.to(tl.int64)[:, None] * d + c[None, :], (i[:, None] < count) & (c[None, :] < d), 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _store(base, value, first, count, d, tile: tl.constexpr, wide: tl.constexpr):  # type: ignore[no-untyped-def]
    i, c = first + tl.arange(0, tile), tl.arange(0, wide)
    inside = (i[:, None] < count) & (c[None, :] < d)
    tl.store(base + i.to(tl.int64)[:, None] * d + c[None, :], value.to(base.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _seen(i, j, keys, diagonal: tl.constexpr):  # type: ignore[no-untyped-def]
    inside = (j < keys) & (i >= 0)
    if diagonal:
        inside = inside & (j <= i)
    return inside


@triton.jit  # type: ignore[untyped-decorator]
def _pass_keys(  # type: ignore[no-untyped-def]
    own, k, v, i, start, end, highest, total, sums, keys, d, scale,
    diagonal: tl.constexpr, across: tl.constexpr, wide: tl.constexpr, even: tl.constexpr, precision: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    """The online softmax over keys start ... end."""
    for first in range(start, end, across):
        scores = _product(own, tl.trans(_rows(k, first, keys, d, across, wide, even)), precision, widen) * scale
        if diagonal or not even:
            scores = tl.where(_seen(i[:, None], (first + tl.arange(0, across))[None, :], keys, diagonal), scores, float("-inf"))
        top = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(top == float("-inf"), 0.0, top)
        p = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(p, 1)
        values = _rows(v, first, keys, d, across, wide, even)
        sums = sums * shrink[:, None] + _product(p.to(values.dtype), values, precision, widen)
        highest = top
    return highest, total, sums


@triton.jit  # type: ignore[untyped-decorator]
def forward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, out, log_sum, queries, keys, d, scale,
    causal: tl.constexpr, owned: tl.constexpr, across: tl.constexpr, wide: tl.constexpr, even: tl.constexpr,
    precision: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    # The last causal tiles see the most keys, so they start first.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * owned
    k, v = k + head * keys * d, v + head * keys * d
    own = _rows(q + head * queries * d, first, queries, d, owned, wide, even)
    i = first + tl.arange(0, owned)
    highest = tl.full((owned,), float("-inf"), tl.float32)
    total = tl.zeros((owned,), tl.float32)
    sums = tl.zeros((owned, wide), tl.float32)
    below = tl.minimum(keys, (first + 1) // across * across) if causal else keys
    highest, total, sums = _pass_keys(
        own, k, v, i, 0, below, highest, total, sums, keys, d, scale, False, across, wide, even, precision, widen
    )
    if causal:
        end = tl.minimum(keys, first + owned)
        highest, total, sums = _pass_keys(
            own, k, v, i, below, end, highest, total, sums, keys, d, scale, True, across, wide, even, precision, widen
        )
    _store(out + head * queries * d, sums / total[:, None], first, queries, d, owned, wide)
    tl.store(log_sum + head * queries + i, highest + tl.log2(total), i < queries)


@triton.jit  # type: ignore[untyped-decorator]
def _dq_over_keys(  # type: ignore[no-untyped-def]
    own, incoming, sums, delta, k, v, i, start, end, total, keys, d, scale,
    diagonal: tl.constexpr, across: tl.constexpr, wide: tl.constexpr, even: tl.constexpr, precision: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    for first in range(start, end, across):
        theirs = _rows(k, first, keys, d, across, wide, even)
        p = tl.exp2(_product(own, tl.trans(theirs), precision, widen) * scale - sums[:, None])
        if diagonal or not even:
            p = tl.where(_seen(i[:, None], (first + tl.arange(0, across))[None, :], keys, diagonal), p, 0.0)
        values = _rows(v, first, keys, d, across, wide, even)
        ds = p * (_product(incoming, tl.trans(values), precision, widen) - delta[:, None])
        total += _product(ds.to(theirs.dtype), theirs, precision, widen)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def query_kernel(  # type: ignore[no-untyped-def]
    g, q, k, v, log_sum, delta, dq, queries, keys, d, scale, slope,
    causal: tl.constexpr, owned: tl.constexpr, across: tl.constexpr, wide: tl.constexpr, even: tl.constexpr,
    precision: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * owned
    k, v = k + head * keys * d, v + head * keys * d
    own = _rows(q + head * queries * d, first, queries, d, owned, wide, even)
    incoming = _rows(g + head * queries * d, first, queries, d, owned, wide, even)
    i = first + tl.arange(0, owned)
    numbers = head * queries + i
    sums, deltas = tl.load(log_sum + numbers, i < queries, 0.0), tl.load(delta + numbers, i < queries, 0.0)
    total = tl.zeros((owned, wide), tl.float32)
    below = tl.minimum(keys, (first + 1) // across * across) if causal else keys
    total = _dq_over_keys(
        own, incoming, sums, deltas, k, v, i, 0, below, total, keys, d, scale, False, across, wide, even, precision, widen
    )
    if causal:
        end = tl.minimum(keys, first + owned)
        total = _dq_over_keys(
            own, incoming, sums, deltas, k, v, i, below, end, total, keys, d, scale, True, across, wide, even, precision, widen
        )
    _store(dq + head * queries * d, total * slope, first, queries, d, owned, wide)


@triton.jit  # type: ignore[untyped-decorator]
def _over_queries(  # type: ignore[no-untyped-def]
    theirs, values, q, g, log_sum, delta, j, start, end, k_total, v_total, queries, keys, d, scale,
    diagonal: tl.constexpr, across: tl.constexpr, wide: tl.constexpr, even: tl.constexpr, precision: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    """Scores lie transposed here, keys by queries, so that both products take them as they are."""
    for first in range(start, end, across):
        own = _rows(q, first, queries, d, across, wide, even)
        i = first + tl.arange(0, across)
        # What does not exist has a probability of zero.
        sums, deltas = tl.load(log_sum + i, i < queries, float("inf")), tl.load(delta + i, i < queries, 0.0)
        p = tl.exp2(_product(theirs, tl.trans(own), precision, widen) * scale - sums[None, :])
        if diagonal or not even:
            p = tl.where(_seen(i[None, :], j[:, None], keys, diagonal), p, 0.0)
        incoming = _rows(g, first, queries, d, across, wide, even)
        v_total += _product(p.to(incoming.dtype), incoming, precision, widen)
        ds = p * (_product(values, tl.trans(incoming), precision, widen) - deltas[None, :])
        k_total += _product(ds.to(own.dtype), own, precision, widen)
    return k_total, v_total


@triton.jit  # type: ignore[untyped-decorator]
def key_kernel(  # type: ignore[no-untyped-def]
    g, q, k, v, log_sum, delta, dk, dv, queries, keys, d, scale, slope,
    causal: tl.constexpr, owned: tl.constexpr, across: tl.constexpr, wide: tl.constexpr, even: tl.constexpr,
    precision: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    head, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * owned
    theirs = _rows(k + head * keys * d, first, keys, d, owned, wide, even)
    values = _rows(v + head * keys * d, first, keys, d, owned, wide, even)
    q, g, log_sum, delta = q + head * queries * d, g + head * queries * d, log_sum + head * queries, delta + head * queries
    j = first + tl.arange(0, owned)
    k_total = tl.zeros((owned, wide), tl.float32)
    v_total = tl.zeros((owned, wide), tl.float32)
    begin = 0
    if causal:
        # The first query at or after the last of these keys, rounded up to a tile.
        begin = tl.minimum(tl.cdiv(first + owned - 1, across) * across, tl.cdiv(queries, across) * across)
        start = tl.minimum(first // across * across, begin)
        k_total, v_total = _over_queries(
            theirs, values, q, g, log_sum, delta, j, start, begin, k_total, v_total, queries, keys, d, scale,
            True, across, wide, even, precision, widen,
        )  # fmt: skip
    k_total, v_total = _over_queries(
        theirs, values, q, g, log_sum, delta, j, begin, queries, k_total, v_total, queries, keys, d, scale,
        False, across, wide, even, precision, widen,
    )  # fmt: skip
    _store(dk + head * keys * d, k_total * slope, first, keys, d, owned, wide)
    _store(dv + head * keys * d, v_total, first, keys, d, owned, wide)


class Tiles(NamedTuple):
    """Rows that a program owns, rows that pass by at a time, warps, and loads under way: the fastest of ten each on an H100."""

    owned: int
    across: int
    warps: int
    stages: int


def forward_tiles(q: Tensor) -> Tiles:
    if q.dtype == torch.float32:
        return _full_precision_tiles(q)
    return Tiles(64, 64, 4, 3) if q.shape[3] <= 128 else Tiles(64, 32, 4, 2)


def query_tiles(q: Tensor) -> Tiles:
    if q.dtype == torch.float32:
        return _full_precision_tiles(q)
    if q.shape[3] > 128:
        return Tiles(32, 32, 4, 1)
    return Tiles(64, 64, 4, 3) if q.shape[3] <= 64 else Tiles(64, 64, 4, 2)


def key_tiles(q: Tensor) -> Tiles:
    if q.dtype == torch.float32:
        return _full_precision_tiles(q)
    if q.shape[3] > 128:
        return Tiles(32, 32, 4, 1)
    return Tiles(64, 128, 4, 2) if q.shape[3] <= 64 else Tiles(64, 64, 4, 2)


def _full_precision_tiles(q: Tensor) -> Tiles:
    """Three products deep, tiles of 64 rows need more shared memory than there is where heads are wide."""
    return Tiles(64, 64, 4, 2) if q.shape[3] <= 64 else Tiles(32, 32, 4, 2)


def _options(q: Tensor, k: Tensor, causal: bool, tiles: Tiles) -> dict[str, Any]:
    wide, largest = max(16, triton.next_power_of_2(q.shape[3])), max(tiles.owned, tiles.across)
    return {
        "causal": causal,
        "owned": tiles.owned,
        "across": tiles.across,
        "wide": wide,
        "even": q.shape[2] % largest == 0 and k.shape[2] % largest == 0 and q.shape[3] == wide,
        # Full f32 would leave the tensor cores idle; three tf32 products keep its precision.
        "precision": "tf32x3" if q.dtype == torch.float32 else "ieee",
        "widen": triton_interpreted(),
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }


def _grid(t: Tensor, tiles: Tiles) -> tuple[int, int]:
    return triton.cdiv(t.shape[2], tiles.owned), t.shape[0] * t.shape[1]


class TritonAttention(torch.autograd.Function):
    """The kernels on contiguous heads."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out, log_sum = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
        slope = q.shape[3] ** -0.5
        sizes, tiles = (q.shape[2], k.shape[2], q.shape[3], slope * math.log2(math.e)), forward_tiles(q)
        forward_kernel[_grid(q, tiles)](q, k, v, out, log_sum, *sizes, **_options(q, k, causal, tiles))
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.causal, ctx.sizes = causal, (*sizes, slope)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, log_sum = ctx.saved_tensors
        g = gradients[0].contiguous()
        delta = (g.float() * out.float()).sum(3)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        tiles = query_tiles(q)
        query_kernel[_grid(q, tiles)](g, q, k, v, log_sum, delta, dq, *ctx.sizes, **_options(q, k, ctx.causal, tiles))
        tiles = key_tiles(q)
        key_kernel[_grid(k, tiles)](g, q, k, v, log_sum, delta, dk, dv, *ctx.sizes, **_options(q, k, ctx.causal, tiles))
        return dq, dk, dv, None
