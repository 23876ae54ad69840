"""Attention over a cache in pages, in Triton: one kernel takes parts of sequences, and another joins their results.

A program of the first owns one head of the cache, all heads of q that read it, and `chunk` tokens. Scores are in powers
of two, because exp2 is one instruction.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpwatch.peers import triton_interpreted

TOKENS, TOKENS_F32 = 64, 16
"""Of a tile; without tensor cores, larger ones take long to compile."""
MOST_TOKENS = 2048
"""Of a part: longer sequences have more parts, so that no program is last by much."""
PROGRAMS_EACH = 4
"""Programs that the first kernel has for each multiprocessor, unless parts would have fewer tokens than a tile."""


@triton.jit  # type: ignore[untyped-decorator]
def part_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    table,
    lengths,
    k_scale,
    v_scale,
    parts,
    log_sums,
    factor,
    pages,
    page,
    group,
    d,
    chunk,
    tile_heads: tl.constexpr,
    tile_tokens: tl.constexpr,
    wide: tl.constexpr,
    has_scales: tl.constexpr,
    widen: tl.constexpr,
):
    part, kv_head, b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    splits, kv_heads = tl.num_programs(0), tl.num_programs(1)
    start = part * chunk
    end = tl.minimum(tl.load(lengths + b), start + chunk)
    h, c = tl.arange(0, tile_heads), tl.arange(0, wide)
    head = (b * kv_heads + kv_head) * group + h
    queries = tl.load(q + head[:, None] * d + c[None, :], (h[:, None] < group) & (c[None, :] < d), 0.0)
    if has_scales:
        factor *= tl.load(k_scale)
    highest = tl.full((tile_heads,), float("-inf"), tl.float32)
    total = tl.zeros((tile_heads,), tl.float32)
    sums = tl.zeros((tile_heads, wide), tl.float32)
    for first in range(start, end, tile_tokens):
        t = first + tl.arange(0, tile_tokens)
        number = tl.load(table + b * pages + t // page, t < end, 0).to(tl.int64)
        at = ((number * page + t % page) * kv_heads + kv_head) * d
        keys = tl.load(k + at[None, :] + c[:, None], (t[None, :] < end) & (c[:, None] < d), 0.0)
        values = tl.load(v + at[:, None] + c[None, :], (t[:, None] < end) & (c[None, :] < d), 0.0)
        keys, values, rows = keys.to(q.dtype.element_ty), values.to(q.dtype.element_ty), queries
        if widen:
            keys, values, rows = keys.to(tl.float32), values.to(tl.float32), rows.to(tl.float32)
        scores = tl.dot(rows, keys, input_precision="ieee") * factor
        scores = tl.where(t[None, :] < end, scores, float("-inf"))
        top = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(top == float("-inf"), 0.0, top)
        p = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(p, 1)
        sums = tl.dot(p.to(values.dtype), values, sums * shrink[:, None], input_precision="ieee")
        highest = top
    if has_scales:
        sums *= tl.load(v_scale)
    # A part behind the end of its sequence has the weight 0.
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    at = head * splits + part
    tl.store(parts + at[:, None] * d + c[None, :], sums, (h[:, None] < group) & (c[None, :] < d))
    tl.store(log_sums + at, highest + tl.log2(total), h < group)


@triton.jit  # type: ignore[untyped-decorator]
def join_kernel(  # type: ignore[no-untyped-def]
    parts, log_sums, lengths, y, heads, splits, d, wide: tl.constexpr, most: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    s, c = tl.arange(0, most), tl.arange(0, wide)
    log_sum = tl.load(log_sums + row * splits + s, s < splits, float("-inf"))
    top = tl.max(log_sum, 0)
    weight = tl.exp2(log_sum - tl.where(top == float("-inf"), 0.0, top))
    inside = (s[:, None] < splits) & (c[None, :] < d)
    part = tl.load(parts + (row * splits + s[:, None]) * d + c[None, :], inside, 0.0)
    total = tl.where(tl.load(lengths + row // heads) > 0, tl.sum(weight, 0), 1.0)
    result = tl.sum(part * weight[:, None], 0) / total
    tl.store(y + row * d + c, result.to(y.dtype.element_ty), c < d)


def tokens_of_part(batch: int, kv_heads: int, longest: int, multiprocessors: int) -> int:
    """A multiple of a tile's."""
    even = batch * kv_heads * longest // (PROGRAMS_EACH * multiprocessors)
    return min(max(-(-even // TOKENS), 1) * TOKENS, MOST_TOKENS)


def attend(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> Tensor:
    (batch, heads, d), (_, page, kv_heads, _) = q.shape, k.shape
    y = torch.empty_like(q, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    longest = table.shape[1] * page
    count = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 132
    chunk = tokens_of_part(batch, kv_heads, longest, count)
    splits, wide = max(triton.cdiv(longest, chunk), 1), max(triton.next_power_of_2(d), 16)
    parts = q.new_empty(batch * heads * splits, d, dtype=torch.float32)
    log_sums = q.new_empty(batch * heads * splits, dtype=torch.float32)
    operands = [tensor.contiguous() for tensor in (q, k, v, table, lengths)]
    group = heads // kv_heads
    part_kernel[(splits, kv_heads, batch)](
        *operands,
        k_scale,
        v_scale,
        parts,
        log_sums,
        math.log2(math.e) / math.sqrt(d),
        table.shape[1],
        page,
        group,
        d,
        chunk,
        max(triton.next_power_of_2(group), 16),
        TOKENS_F32 if q.dtype == torch.float32 else TOKENS,
        wide,
        k_scale is not None,
        triton_interpreted(),
        num_warps=4,
        num_stages=3,
    )
    most = triton.next_power_of_2(splits)
    join_kernel[(batch * heads,)](parts, log_sums, operands[-1], y, heads, splits, d, wide, most, num_warps=4)
    return y
