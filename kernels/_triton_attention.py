"""Attention in Triton: a kernel forward, one for dQ and one for dK and dV. The backward pass recomputes probabilities.

A program owns a tile of queries (of keys for dK and dV) and loops over tiles of the other side. It applies masks on the
causal diagonal, and elsewhere only if a tile reaches beyond an end; `even` says that none does. Scores are in powers of
two, because exp2 is one instruction. The layout of tensors is (batch, heads, rows, dim) or, `by_row`, (batch, rows,
heads, dim), in which a model's projections leave them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpwatch.peers import triton_interpreted

from ._gradients import once_differentiable


@triton.jit  # type: ignore[untyped-decorator]
def _product(x, y, precision: tl.constexpr, widen: tl.constexpr):  # type: ignore[no-untyped-def]
    if widen:
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, y, input_precision=precision)


@triton.jit  # type: ignore[untyped-decorator]
def _of_head(base, count, d, heads, by_row: tl.constexpr):  # type: ignore[no-untyped-def]
    """Pointer to the head of this program in a tensor with `count` rows per head."""
    number = tl.program_id(1).to(tl.int64)
    if by_row:
        return base + (number // heads * count * heads + number % heads) * d
    return base + number * count * d


@triton.jit  # type: ignore[untyped-decorator]
def _rows(base, first, count, d, stride, tile: tl.constexpr, wide: tl.constexpr, even: tl.constexpr):  # type: ignore[no-untyped-def]
    """`tile` rows of a head from `first` on; rows and columns beyond the end are zero."""
    i, c = first + tl.arange(0, tile), tl.arange(0, wide)
    at = base + i.to(tl.int64)[:, None] * stride + c[None, :]
    return tl.load(at) if even else tl.load(at, (i[:, None] < count) & (c[None, :] < d), 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _store(base, value, first, count, d, stride, tile: tl.constexpr, wide: tl.constexpr):  # type: ignore[no-untyped-def]
    i, c = first + tl.arange(0, tile), tl.arange(0, wide)
    inside = (i[:, None] < count) & (c[None, :] < d)
    tl.store(base + i.to(tl.int64)[:, None] * stride + c[None, :], value.to(base.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _seen(i, j, keys, diagonal: tl.constexpr):  # type: ignore[no-untyped-def]
    inside = (j < keys) & (i >= 0)
    if diagonal:
        inside = inside & (j <= i)
    return inside


@triton.jit  # type: ignore[untyped-decorator]
def forward_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    out,
    log_sum,
    queries,
    keys,
    heads,
    d,
    stride,
    scale,
    causal: tl.constexpr,
    by_row: tl.constexpr,
    owned: tl.constexpr,
    across: tl.constexpr,
    wide: tl.constexpr,
    even: tl.constexpr,
    precision: tl.constexpr,
    widen: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    # The last causal tiles see the most keys, so they start first.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * owned
    k, v = _of_head(k, keys, d, heads, by_row), _of_head(v, keys, d, heads, by_row)
    q_tile = _rows(_of_head(q, queries, d, heads, by_row), first, queries, d, stride, owned, wide, even)
    i = first + tl.arange(0, owned)
    highest = tl.full((owned,), float("-inf"), tl.float32)
    total = tl.zeros((owned,), tl.float32)
    sums = tl.zeros((owned, wide), tl.float32)
    # First the keys that every query of the tile sees, then those on the causal diagonal.
    below = tl.minimum(keys, (first + 1) // across * across) if causal else keys
    for part in tl.static_range(2 if causal else 1):
        start, end = (below, tl.minimum(keys, first + owned)) if part == 1 else (0, below)
        for key in range(start, end, across):
            scores = (
                _product(q_tile, tl.trans(_rows(k, key, keys, d, stride, across, wide, even)), precision, widen) * scale
            )
            if part == 1 or not even:
                seen = _seen(i[:, None], (key + tl.arange(0, across))[None, :], keys, part == 1)
                scores = tl.where(seen, scores, float("-inf"))
            top = tl.maximum(highest, tl.max(scores, 1))
            base = tl.where(top == float("-inf"), 0.0, top)
            p = tl.exp2(scores - base[:, None])
            shrink = tl.exp2(highest - base)
            total = total * shrink + tl.sum(p, 1)
            values = _rows(v, key, keys, d, stride, across, wide, even)
            sums = sums * shrink[:, None] + _product(p.to(values.dtype), values, precision, widen)
            highest = top
    _store(_of_head(out, queries, d, heads, by_row), sums / total[:, None], first, queries, d, stride, owned, wide)
    tl.store(log_sum + head * queries + i, highest + tl.log2(total), i < queries)


@triton.jit  # type: ignore[untyped-decorator]
def query_kernel(  # type: ignore[no-untyped-def]
    g,
    q,
    k,
    v,
    log_sum,
    delta,
    dq,
    queries,
    keys,
    heads,
    d,
    stride,
    scale,
    slope,
    causal: tl.constexpr,
    by_row: tl.constexpr,
    owned: tl.constexpr,
    across: tl.constexpr,
    wide: tl.constexpr,
    even: tl.constexpr,
    precision: tl.constexpr,
    widen: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * owned
    k, v = _of_head(k, keys, d, heads, by_row), _of_head(v, keys, d, heads, by_row)
    q_tile = _rows(_of_head(q, queries, d, heads, by_row), first, queries, d, stride, owned, wide, even)
    incoming = _rows(_of_head(g, queries, d, heads, by_row), first, queries, d, stride, owned, wide, even)
    i = first + tl.arange(0, owned)
    numbers = head * queries + i
    sums, deltas = tl.load(log_sum + numbers, i < queries, 0.0), tl.load(delta + numbers, i < queries, 0.0)
    total = tl.zeros((owned, wide), tl.float32)
    below = tl.minimum(keys, (first + 1) // across * across) if causal else keys
    for part in tl.static_range(2 if causal else 1):
        start, end = (below, tl.minimum(keys, first + owned)) if part == 1 else (0, below)
        for key in range(start, end, across):
            k_tile = _rows(k, key, keys, d, stride, across, wide, even)
            p = tl.exp2(_product(q_tile, tl.trans(k_tile), precision, widen) * scale - sums[:, None])
            if part == 1 or not even:
                p = tl.where(_seen(i[:, None], (key + tl.arange(0, across))[None, :], keys, part == 1), p, 0.0)
            values = _rows(v, key, keys, d, stride, across, wide, even)
            ds = p * (_product(incoming, tl.trans(values), precision, widen) - deltas[:, None])
            total += _product(ds.to(k_tile.dtype), k_tile, precision, widen)
    _store(_of_head(dq, queries, d, heads, by_row), total * slope, first, queries, d, stride, owned, wide)


@triton.jit  # type: ignore[untyped-decorator]
def key_kernel(  # type: ignore[no-untyped-def]
    g,
    q,
    k,
    v,
    log_sum,
    delta,
    dk,
    dv,
    queries,
    keys,
    heads,
    d,
    stride,
    scale,
    slope,
    causal: tl.constexpr,
    by_row: tl.constexpr,
    owned: tl.constexpr,
    across: tl.constexpr,
    wide: tl.constexpr,
    even: tl.constexpr,
    precision: tl.constexpr,
    widen: tl.constexpr,
):
    head, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * owned
    k_tile = _rows(_of_head(k, keys, d, heads, by_row), first, keys, d, stride, owned, wide, even)
    values = _rows(_of_head(v, keys, d, heads, by_row), first, keys, d, stride, owned, wide, even)
    q, g = _of_head(q, queries, d, heads, by_row), _of_head(g, queries, d, heads, by_row)
    log_sum, delta = log_sum + head * queries, delta + head * queries
    j = first + tl.arange(0, owned)
    k_total = tl.zeros((owned, wide), tl.float32)
    v_total = tl.zeros((owned, wide), tl.float32)
    # First the queries on the causal diagonal, then those that see all of these keys.
    start, below = 0, 0
    if causal:
        # The first query at or after the last of these keys, rounded up to a tile.
        below = tl.minimum(tl.cdiv(first + owned - 1, across) * across, tl.cdiv(queries, across) * across)
        start = tl.minimum(first // across * across, below)
    for part in tl.static_range(0 if causal else 1, 2):
        begin, end = (start, below) if part == 0 else (below, queries)
        for query in range(begin, end, across):
            # Scores lie transposed here, keys by queries, so that both products take them as they are.
            q_tile = _rows(q, query, queries, d, stride, across, wide, even)
            i = query + tl.arange(0, across)
            # A query beyond the end gets a probability of zero.
            sums, deltas = tl.load(log_sum + i, i < queries, float("inf")), tl.load(delta + i, i < queries, 0.0)
            p = tl.exp2(_product(k_tile, tl.trans(q_tile), precision, widen) * scale - sums[None, :])
            if part == 0 or not even:
                p = tl.where(_seen(i[None, :], j[:, None], keys, part == 0), p, 0.0)
            incoming = _rows(g, query, queries, d, stride, across, wide, even)
            v_total += _product(p.to(incoming.dtype), incoming, precision, widen)
            ds = p * (_product(values, tl.trans(incoming), precision, widen) - deltas[None, :])
            k_total += _product(ds.to(q_tile.dtype), q_tile, precision, widen)
    _store(_of_head(dk, keys, d, heads, by_row), k_total * slope, first, keys, d, stride, owned, wide)
    _store(_of_head(dv, keys, d, heads, by_row), v_total, first, keys, d, stride, owned, wide)


@triton.jit  # type: ignore[untyped-decorator]
def delta_kernel(  # type: ignore[no-untyped-def]
    g,
    out,
    delta,
    queries,
    heads,
    d,
    stride,
    by_row: tl.constexpr,
    owned: tl.constexpr,
    wide: tl.constexpr,
    even: tl.constexpr,
):
    """delta = the sum of g * out in each row, a term of the gradient of every score of the row."""
    first = tl.program_id(0) * owned
    incoming = _rows(_of_head(g, queries, d, heads, by_row), first, queries, d, stride, owned, wide, even)
    out_tile = _rows(_of_head(out, queries, d, heads, by_row), first, queries, d, stride, owned, wide, even)
    i = first + tl.arange(0, owned)
    total = tl.sum(incoming.to(tl.float32) * out_tile.to(tl.float32), 1)
    tl.store(delta + tl.program_id(1).to(tl.int64) * queries + i, total, i < queries)


class Tiles(NamedTuple):
    """Rows that a program owns, rows per iteration of its loop, warps, and stages of software pipelining."""

    owned: int
    across: int
    warps: int
    stages: int


# By the widest head that each is for, in half precision. Up to 128 they are within 2 % of the fastest of ten
# configurations on an H100; wider heads were not tuned.
FORWARD = {128: Tiles(64, 64, 4, 3), 256: Tiles(64, 32, 4, 2)}
QUERY = {64: Tiles(64, 64, 4, 3), 128: Tiles(64, 64, 4, 2), 256: Tiles(32, 32, 4, 1)}
KEY = {64: Tiles(64, 128, 4, 2), 128: Tiles(64, 64, 4, 2), 256: Tiles(32, 32, 4, 1)}


def _tiles(q: Tensor, by_width: dict[int, Tiles]) -> Tiles:
    if q.dtype == torch.float32:
        # Three products deep, tiles of 64 rows need more shared memory than there is where heads are wide.
        return Tiles(64, 64, 4, 2) if q.shape[3] <= 64 else Tiles(32, 32, 4, 2)
    return next((tiles for width, tiles in by_width.items() if q.shape[3] <= width), by_width[256])


class Shape(NamedTuple):
    """Arguments that all kernels of a call take, in their order."""

    queries: int
    keys: int
    heads: int
    d: int
    stride: int
    scale: float
    slope: float


class Call:
    """Attention of tensors of one layout."""

    def __init__(self, q: Tensor, k: Tensor, causal: bool, by_row: bool) -> None:
        _, heads, queries, d = q.shape
        slope = d**-0.5
        self.shape = Shape(queries, k.shape[2], heads, d, heads * d if by_row else d, slope * math.log2(math.e), slope)
        self.by_row = by_row
        self._causal = causal
        self._whole = q.dtype == torch.float32

    def grid(self, t: Tensor, tiles: Tiles) -> tuple[int, int]:
        return triton.cdiv(t.shape[2], tiles.owned), t.shape[0] * t.shape[1]

    def tiled(self, tiles: Tiles) -> dict[str, Any]:
        """The options of a kernel without products."""
        wide, largest = max(16, triton.next_power_of_2(self.shape.d)), max(tiles.owned, tiles.across)
        even = self.shape.queries % largest == 0 and self.shape.keys % largest == 0 and self.shape.d == wide
        return {"by_row": self.by_row, "owned": tiles.owned, "wide": wide, "even": even, "num_warps": tiles.warps}

    def options(self, tiles: Tiles) -> dict[str, Any]:
        return {
            **self.tiled(tiles),
            "causal": self._causal,
            "across": tiles.across,
            # Full f32 would leave the tensor cores idle; three tf32 products keep its precision.
            "precision": "tf32x3" if self._whole else "ieee",
            "widen": triton_interpreted(),
            "num_stages": tiles.stages,
        }


def _laid_out(t: Tensor, by_row: bool) -> Tensor:
    return t.transpose(1, 2).contiguous().transpose(1, 2) if by_row else t.contiguous()


class TritonAttention(torch.autograd.Function):
    """The kernels on heads in the layout of the queries."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        by_row = not q.is_contiguous() and q.transpose(1, 2).is_contiguous()
        q, k, v = (_laid_out(t, by_row) for t in (q, k, v))
        call, tiles = Call(q, k, causal, by_row), _tiles(q, FORWARD)
        out, log_sum = torch.empty_like(q), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        forward_kernel[call.grid(q, tiles)](q, k, v, out, log_sum, *call.shape[:-1], **call.options(tiles))
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.call = call
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (q, k, v, out, log_sum), call = ctx.saved_tensors, ctx.call
        g, delta = _laid_out(gradients[0], call.by_row), torch.empty_like(log_sum)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        tiles = _tiles(q, QUERY)
        queries, _, heads, d, stride = call.shape[:5]
        delta_kernel[call.grid(q, tiles)](g, out, delta, queries, heads, d, stride, **call.tiled(tiles))
        query_kernel[call.grid(q, tiles)](g, q, k, v, log_sum, delta, dq, *call.shape, **call.options(tiles))
        tiles = _tiles(q, KEY)
        key_kernel[call.grid(k, tiles)](g, q, k, v, log_sum, delta, dk, dv, *call.shape, **call.options(tiles))
        return dq, dk, dv, None
