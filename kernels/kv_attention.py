"""Attention of one new token per sequence over a cache of keys and values in pages: the decoding of a language model.

q is (batch, heads, d). Keys and values are pools of pages (pages, page, kv_heads, d), which all sequences share: row b
of `table` lists the pages of sequence b in order, and `lengths[b]` says how many tokens it has. Several heads of q read
one head of the cache. A cache in FP8 has one scale for its keys and one for its values.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, case
from warpwatch.peers import compile_unsupported, triton_unsupported
from warpwatch.quantization import decode, is_coded

from ._aligned import aligned
from ._compiled import compiled

CUDA_DIMS = (64, 128)
"""Of a head, for the CUDA kernel of v3."""
FLASH_PAGE = 256
"""Tokens of which a page holds a multiple, for FlashAttention 2 in torch."""
LOUD = 64.0
"""Factor of the first head's queries, whose scores no softmax survives that does not take off the largest."""


def sequence_lengths(batch: int, length: int) -> list[int]:
    """Tokens of each sequence before the seed shuffles them: from the longest down to half of it."""
    return [length - index * length // (2 * batch) for index in range(batch)]


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    batch, heads, kv_heads, d = case["batch"], case["heads"], case["kv_heads"], case["d"]
    if heads % kv_heads:
        raise ValueError(f"heads={heads} is no multiple of kv_heads={kv_heads}")
    per_sequence = -(-case["length"] // case["page"])
    # A page that no sequence has lies in the pool as well.
    order = make.integers(0, 1 << 30, batch * per_sequence + 1).argsort()
    shuffled = make.integers(0, 1 << 30, batch).argsort()
    q = make.normal(batch, heads, d)
    q[:, :1] *= LOUD
    caches: list[Tensor] = []
    scales: list[Tensor | None] = []
    for _ in "kv":
        shape = len(order), case["page"], kv_heads, d
        if case["kv"] == "e4m3-tensor":
            # Codes without scales are of all kinds, row by row; those of a whole tensor are normal numbers.
            caches.append(make.codes("e4m3", math.prod(shape[:3]), d)[0].view(shape))
            scales.append((1 + make.normal(1).float().abs()) / 128)
        else:
            caches.append(make.normal(*shape))
            scales.append(None)
    return {
        "q": q,
        "k": caches[0],
        "v": caches[1],
        "table": order[: batch * per_sequence].view(batch, per_sequence).int(),
        "lengths": torch.tensor(sequence_lengths(batch, case["length"]), device=q.device)[shuffled].int(),
        "k_scale": scales[0],
        "v_scale": scales[1],
    }


def case_of(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> Case:
    names = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
    kv = "e4m3-tensor" if is_coded(k) else names.get(k.dtype, "f32")
    page, kv_heads = k.shape[1:3]
    return sized("bf16", q.shape[0], q.shape[1], q.shape[2], kv_heads, table.shape[1] * page, page, kv)


def pages_of(cache: Tensor, pages: Tensor) -> Tensor:
    """The tokens of pages, one after the other: (…, tokens, kv_heads, d)."""
    # torch selects rows of no dtype of eight bits on every device.
    plain = cache.view(torch.uint8) if is_coded(cache) else cache
    return plain[pages].flatten(-4, -3).view(cache.dtype)


def reference(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> Tensor:
    """One sequence after the other, in float64."""
    results = []
    for queries, pages, length in zip(q.double(), table.long(), lengths.tolist(), strict=True):
        keys = numbers_of(pages_of(k, pages)[:length], k_scale)
        values = numbers_of(pages_of(v, pages)[:length], v_scale)
        grouped = by_kv_head(queries, k)
        scores = grouped @ keys.permute(1, 2, 0) / math.sqrt(q.shape[2])
        results.append((scores.softmax(2) @ values.transpose(0, 1)).flatten(0, 1))
    return torch.stack(results).to(q.dtype)


def by_kv_head(q: Tensor, k: Tensor) -> Tensor:
    """(…, kv_heads, heads that share one, d)."""
    *before, heads, d = q.shape
    return q.reshape(*before, k.shape[2], heads // k.shape[2], d)


def numbers_of(codes: Tensor, scale: Tensor | None) -> Tensor:
    numbers = decode(codes, "e4m3")
    return numbers if scale is None else numbers * scale.double()


def cost(case: Case) -> Cost:
    """Two products for each head; each page of a sequence is read up to its last token."""
    batch, heads, kv_heads, d = case["batch"], case["heads"], case["kv_heads"], case["d"]
    tokens = sum(sequence_lengths(batch, case["length"]))
    cache = 2 * case.number_format("kv").count_bytes(tokens * kv_heads, d)
    pages = sum(-(-length // case["page"]) for length in sequence_lengths(batch, case["length"]))
    return Cost(4 * heads * tokens * d, cache + 2 * case.element_bytes * batch * heads * d + 4 * (pages + batch))


@functools.cache
def register_native() -> None:
    """Shapes for torch.compile for the torch operator that the library defines."""

    @torch.library.register_fake("warpwatch::kv_attention")  # type: ignore[untyped-decorator]
    def fake(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor,
        lengths: Tensor,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
    ) -> Tensor:
        return q.new_empty(q.shape)


def sized(precision: Any, batch: int, heads: int, d: int, kv_heads: int, length: int, page: int, kv: str = "") -> Case:
    kv = kv or precision
    return case(precision, batch=batch, heads=heads, d=d, kv_heads=kv_heads, length=length, page=page, kv=kv)


CODES = "e4m3-tensor"
QUICK = (
    sized("bf16", 2, 8, 64, 2, 150, 32, CODES),
    sized("bf16", 3, 8, 128, 2, 130, 16),
    sized("f32", 2, 4, 64, 2, 130, 64),
    sized("f32", 2, 6, 128, 2, 100, 16, CODES),
)
FULL = (
    *QUICK,
    *(
        sized("bf16", batch, 32, 128, 8, length, 256, kv)
        for batch, length in ((1, 1024), (1, 16384), (16, 4096), (16, 16384), (64, 1024), (64, 4096))
        for kv in ("bf16", CODES)
    ),
    sized("bf16", 16, 32, 128, 8, 4096, 16),
)
EDGE = (
    sized("f32", 1, 1, 8, 1, 1, 4),
    sized("bf16", 2, 10, 128, 2, 65, 1),
    sized("f32", 2, 3, 40, 1, 33, 12),
    sized("bf16", 5, 4, 64, 4, 31, 8, CODES),
)

operator = Operator(
    "kv_attention",
    "Attention of one token per sequence over keys and values in pages, in BF16 or FP8.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    case_of=case_of,
    depth=lambda case: int(case["length"] + case["d"]),
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    native=register_native,
    batch="batch",
)


def in_f32(codes: Tensor, scale: Tensor | None) -> Tensor:
    return codes.float() if scale is None else codes.float() * scale


@operator.variant("v1", idea="copies the pages of one sequence after the other, two products in f32 with a softmax")
def v1(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> Tensor:
    y = torch.empty_like(q)
    for index, length in enumerate(lengths.tolist()):
        keys = in_f32(pages_of(k, table[index])[:length], k_scale)
        values = in_f32(pages_of(v, table[index])[:length], v_scale)
        grouped = by_kv_head(q[index].float(), k)
        scores = grouped @ keys.permute(1, 2, 0) / math.sqrt(q.shape[2])
        y[index] = (scores.softmax(2) @ values.transpose(0, 1)).flatten(0, 1).to(q.dtype)
    return y


def are_present(table: Tensor, lengths: Tensor, page: int) -> Tensor:
    """(batch, tokens): whether the place of a token lies within the sequence."""
    return torch.arange(table.shape[1] * page, device=table.device) < lengths[:, None]


def of_all_pages(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> Tensor:
    """All sequences at once, with a mask for places behind their ends."""
    keys, values = in_f32(pages_of(k, table), k_scale), in_f32(pages_of(v, table), v_scale)
    grouped = by_kv_head(q.float(), k)
    present = are_present(table, lengths, k.shape[1])
    scores = grouped @ keys.permute(0, 2, 3, 1) / math.sqrt(q.shape[2])
    shares = scores.masked_fill(~present[:, None, None], -math.inf).softmax(3)
    y: Tensor = (shares @ values.transpose(1, 2)).flatten(1, 2).to(q.dtype)
    return y


@operator.variant("v2", idea="copies the pages of all sequences at once and masks their ends")
def v2(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> Tensor:
    return of_all_pages(q, k, v, table, lengths, k_scale, v_scale)


@operator.variant("compile", idea="torch.compile of v2", unsupported=compile_unsupported)
def compiled_v2(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> Tensor:
    return _compiled()(q, k, v, table, lengths, k_scale, v_scale)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(of_all_pages)


def sdpa_unsupported(case: Case, device: DeviceKind) -> str | None:
    """On an H200 with torch 2.11 a head of large numbers was NaN in bf16, and f32 ended the process."""
    return "torch's CUDA kernels take no mask that ends within a block" if device == "cuda" else None


@operator.variant(
    "sdpa",
    idea="copies all pages, then scaled_dot_product_attention with a mask; heads that share keys are its queries",
    unsupported=sdpa_unsupported,
    no_special_values="the mask is added to scores, so that a NaN behind the end of a sequence stays",
)
def sdpa(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> Tensor:
    keys, values = pages_of(k, table), pages_of(v, table)
    grouped = by_kv_head(q, k)
    if k_scale is not None:
        keys, values, grouped = in_f32(keys, k_scale), in_f32(values, v_scale), grouped.float()
    mask = are_present(table, lengths, k.shape[1])[:, None, None].expand(-1, -1, grouped.shape[2], -1)
    y = F.scaled_dot_product_attention(grouped, keys.transpose(1, 2), values.transpose(1, 2), mask)
    return y.flatten(1, 2).to(q.dtype)


def varlen_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case.precision not in ("bf16", "f16") or case["kv"] != case.precision:
        return "FlashAttention 2 takes bf16 and f16"
    if case["page"] % FLASH_PAGE:
        return f"FlashAttention 2 takes pages of a multiple of {FLASH_PAGE} tokens"
    return None if _varlen_takes_pages() else "this torch has no varlen_attn with pages"


@functools.cache
def _varlen_takes_pages() -> bool:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return "block_table" in inspect.signature(varlen_attn).parameters


@operator.variant(
    "varlen", idea="torch's varlen_attn: FlashAttention 2 over pages", devices=("cuda",), unsupported=varlen_unsupported
)
def varlen(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    starts = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
    # The kernel takes pools without gaps.
    pools = aligned(k.contiguous()), aligned(v.contiguous())
    y = varlen_attn(
        aligned(q.contiguous()),
        *pools,
        starts,
        None,
        1,
        table.shape[1] * k.shape[1],
        enable_gqa=True,
        seqused_k=lengths.contiguous(),
        block_table=table.contiguous(),
    )
    assert isinstance(y, Tensor)
    return y


def v3_unsupported(case: Case, device: DeviceKind) -> str | None:
    if device == "cpu":
        return None
    if case["d"] not in CUDA_DIMS:
        return "its CUDA kernel takes heads of 64 and 128"
    if case["page"] & (case["page"] - 1):
        return "its CUDA kernel takes pages of a power of two"
    return None


@operator.variant(
    "v3",
    idea=(
        "CUDA: blocks take parts of a sequence for four heads, lanes read 16 bytes of keys and values, and a second "
        "kernel joins the parts; C++: one pass over the keys and one over the values"
    ),
    outcome="reading the cache",
    native=True,
    unsupported=v3_unsupported,
)
def v3(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> Tensor:
    y: Tensor = torch.ops.warpwatch.kv_attention(q, k, v, table, lengths, k_scale, v_scale)
    return y


@operator.variant(
    "triton",
    idea="v3's division, with products on tensor cores: the heads that share keys are the rows of a tile",
    outcome="a tile has 16 rows, of which shared keys fill a part",
    unsupported=triton_unsupported,
)
def triton_kv(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> Tensor:
    from ._triton_kv_attention import attend

    return attend(q, k, v, table, lengths, k_scale, v_scale)
