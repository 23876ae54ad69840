"""y = x · W[expert]ᵀ for tokens that are sorted by their expert: the layers of a mixture of experts, in BF16 or FP8.

x is (tokens, k) and W is (experts, n, k). The rows of expert e end where `ends[e]` says and begin where those of the
expert before end, so that an expert may have none. FP8 codes have scales of rows or of blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, case
from warpwatch.peers import compile_unsupported, triton_interpreted, triton_unsupported
from warpwatch.quantization import decode, number_format

from ._aligned import aligned
from ._compiled import compiled
from ._fp8 import fp8_unsupported

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
NAMES = ("e4m3-128x128", "e4m3-1x128", "e4m3-row")
"""Of formats of codes; of several that fit a small matrix, the last."""
BLOCK = 128
"""Rows and columns that share a scale where rows do not have scales of their own."""
ACCESS = 16
"""Bytes of which the rows of a matrix must be a multiple for torch's kernel and for copies by TMA."""
TORCH_K = 32
"""Of which k must be a multiple for torch's CUDA kernels: with 40 and 48 those of torch 2.11 end the process."""


def group_sizes(tokens: int, experts: int) -> list[int]:
    """Tokens of each expert before the seed shuffles them: none for the first, twice the average for the last. They are
    the same for every seed, since times depend on them."""
    average = tokens / experts
    sizes = [int(2 * average * expert / max(experts - 1, 1)) for expert in range(experts)]
    return [*sizes[:-1], tokens - sum(sizes[:-1])]


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    tokens, n, k, experts = case["tokens"], case["n"], case["k"], case["experts"]
    order = make.integers(0, 1 << 30, experts).argsort()
    ends = torch.tensor(group_sizes(tokens, experts), device=order.device)[order].cumsum(0).int()
    given = {"ends": ends, "dtype": DTYPES[case.precision]}
    if not case.number_format("w").scale:
        x, w = make.normal(tokens, k), make.normal(experts, n, k, scale=max(k, 1) ** -0.5)
        return {"x": x, "w": w, "x_scale": None, "w_scale": None, **given}
    x, x_scale = make.codes(case["x"], tokens, k)
    # Each expert begins with a block of its own.
    padded = -(-n // BLOCK) * BLOCK if case.number_format("w").block[0] == BLOCK else n
    w, w_scale = make.codes(case["w"], experts * padded, k)
    w = w.view(experts, padded, k)[:, :n].contiguous()
    return {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale.view(experts, -1, w_scale.shape[1]), **given}


def case_of(
    x: Tensor, w: Tensor, ends: Tensor, x_scale: Tensor | None, w_scale: Tensor | None, dtype: torch.dtype
) -> Case:
    names = name_of(x, x_scale), name_of(w, w_scale)
    return case(tokens=x.shape[0], n=w.shape[1], k=x.shape[1], experts=w.shape[0], x=names[0], w=names[1])


def name_of(matrix: Tensor, scale: Tensor | None) -> str:
    """The number format of a matrix, or of several of one shape."""
    if scale is None:
        return "bf16" if matrix.dtype == torch.bfloat16 else "f32"
    shapes = {tuple(number_format(name).scale_shape(*matrix.shape[-2:])): name for name in NAMES}
    return shapes[tuple(scale.shape[-2:])]


def spread(scale: Tensor, rows: int, columns: int) -> Tensor:
    """The scale of every element of a matrix or of each of several matrices."""
    across = BLOCK if scale.shape[-1] > 1 else columns
    if scale.shape[-2] != rows:
        scale = scale.repeat_interleave(BLOCK, -2)[..., :rows, :]
    return scale.repeat_interleave(across, -1)[..., :columns]


def reference(
    x: Tensor, w: Tensor, ends: Tensor, x_scale: Tensor | None, w_scale: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The products of what the codes stand for, group by group in float64."""
    rows, bounds = numbers_of(x, x_scale), [0, *ends.tolist()]
    groups = [
        rows[start:end] @ numbers_of(w[expert], None if w_scale is None else w_scale[expert]).mT
        for expert, (start, end) in enumerate(pairwise(bounds))
    ]
    y = torch.cat(groups)
    return y if x.dtype == torch.float64 else y.to(dtype)


def numbers_of(matrix: Tensor, scale: Tensor | None) -> Tensor:
    numbers = decode(matrix, "e4m3")
    return numbers if scale is None else numbers * spread(scale.double(), *matrix.shape[-2:])


def cost(case: Case) -> Cost:
    """The weights of an expert without tokens are not read."""
    tokens, n, k = case["tokens"], case["n"], case["k"]
    busy = sum(size > 0 for size in group_sizes(tokens, case["experts"]))
    read = case.number_format("x").count_bytes(tokens, k) + busy * case.number_format("w").count_bytes(n, k)
    return Cost(2 * tokens * n * k, read + case.element_bytes * tokens * n)


def sized(precision: Any, tokens: int, n: int, k: int, experts: int, x: str = "", w: str = "") -> Case:
    x = x or precision
    return case(precision, tokens=tokens, n=n, k=k, experts=experts, x=x, w=w or x)


ROWS, BLOCKS = ("e4m3-row", "e4m3-row"), ("e4m3-1x128", "e4m3-128x128")
QUICK = (
    sized("bf16", 200, 192, 256, 3, *BLOCKS),
    sized("bf16", 96, 64, 256, 4, *ROWS),
    sized("bf16", 96, 64, 128, 4),
    sized("f32", 70, 48, 96, 8),
    sized("f32", 64, 160, 256, 4, *BLOCKS),
)
FULL = (
    *QUICK,
    *(
        sized("bf16", 4096, n, k, experts, *formats)
        for n, k, experts in ((4096, 2048, 8), (14336, 4096, 8), (1408, 2048, 64))
        for formats in ((), ROWS, BLOCKS)
    ),
    sized("bf16", 64, 4096, 2048, 8),
    sized("bf16", 16384, 4096, 2048, 8),
)
EDGE = (
    sized("bf16", 1, 16, 32, 4),
    sized("bf16", 130, 24, 40, 2),
    sized("bf16", 33, 16, 48, 1, *ROWS),
    sized("f32", 5, 3, 4, 7),
    sized("f32", 150, 131, 272, 2, *BLOCKS),
)

operator = Operator(
    "grouped_matmul",
    "Products of tokens with the weights of their experts, in BF16 or FP8 with scales of rows or blocks.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    case_of=case_of,
    depth=lambda case: int(case["k"]),
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
)


def in_f32(matrix: Tensor, scale: Tensor | None) -> Tensor:
    return matrix.float() if scale is None else matrix.float() * spread(scale, *matrix.shape[-2:])


@operator.variant("v1", idea="one product for each expert, of matrices that are dequantized to f32")
def v1(
    x: Tensor, w: Tensor, ends: Tensor, x_scale: Tensor | None, w_scale: Tensor | None, dtype: torch.dtype
) -> Tensor:
    rows, weights = in_f32(x, x_scale), in_f32(w, w_scale)
    y, start = x.new_empty(x.shape[0], w.shape[1], dtype=dtype), 0
    for expert, end in enumerate(ends.tolist()):
        y[start:end] = rows[start:end] @ weights[expert].mT
        start = end
    return y


def plain_alone(case: Case, device: DeviceKind) -> str | None:
    return "torch.mm takes no codes" if case.number_format("w").scale else None


@operator.variant("v2", idea="torch.mm for each expert that has tokens, into its rows", unsupported=plain_alone)
def v2(
    x: Tensor, w: Tensor, ends: Tensor, x_scale: Tensor | None, w_scale: Tensor | None, dtype: torch.dtype
) -> Tensor:
    y, start = x.new_empty(x.shape[0], w.shape[1]), 0
    for expert, end in enumerate(ends.tolist()):
        if end > start:
            torch.mm(x[start:end], w[expert].mT, out=y[start:end])
        start = end
    return y


def unaligned(case: Case, device: DeviceKind) -> str | None:
    element = 1 if case.number_format("x").scale else case.element_bytes
    if case["k"] * element % ACCESS or case["n"] * case.element_bytes % ACCESS:
        return "rows of its matrices are multiples of 16 bytes"
    return None


def grouped_mm_unsupported(case: Case, device: DeviceKind) -> str | None:
    if device == "cuda" and case["k"] % TORCH_K:
        return f"torch's CUDA kernels take multiples of {TORCH_K} for k"
    if not case.number_format("w").scale:
        if device == "cuda" and case.precision != "bf16":
            return "torch's CUDA kernel takes bf16"
        return unaligned(case, device)
    if device == "cpu":
        return "torch._scaled_grouped_mm exists for GPUs alone"
    if case["x"] != "e4m3-row" or case["w"] != "e4m3-row":
        return "torch._scaled_grouped_mm takes scales of rows"
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0):
        return "torch._scaled_grouped_mm exists from compute capability 9.0 on"
    if case["n"] % ACCESS:
        return "torch._scaled_grouped_mm takes multiples of 16 for n"
    return fp8_unsupported(case, device)


@operator.variant(
    "grouped_mm",
    idea="torch._grouped_mm, and torch._scaled_grouped_mm for codes: CUTLASS, without a wait for the sizes",
    unsupported=grouped_mm_unsupported,
)
def grouped_mm(
    x: Tensor, w: Tensor, ends: Tensor, x_scale: Tensor | None, w_scale: Tensor | None, dtype: torch.dtype
) -> Tensor:
    rows, weights, ends = aligned(x.contiguous()), aligned(w.contiguous()).mT, aligned(ends)
    if x_scale is None or w_scale is None:
        return torch._grouped_mm(rows, weights, ends)
    scales = aligned(x_scale.reshape(-1)), aligned(w_scale.flatten(1))
    return torch._scaled_grouped_mm(rows, weights, *scales, ends, out_dtype=dtype, use_fast_accum=True)


def of_all_experts(
    x: Tensor, w: Tensor, ends: Tensor, x_scale: Tensor | None, w_scale: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Every token by every expert in f32, of which the result takes one."""
    tokens = torch.arange(x.shape[0], device=x.device)
    expert = torch.searchsorted(ends.contiguous(), tokens.to(ends.dtype), right=True)
    return (in_f32(x, x_scale) @ in_f32(w, w_scale).mT)[expert, tokens].to(dtype)


@operator.variant(
    "compile",
    idea="torch.compile of products of every token with every expert, which waits for no sizes",
    outcome="computes as many times what is needed as there are experts",
    unsupported=compile_unsupported,
)
def compiled_all(
    x: Tensor, w: Tensor, ends: Tensor, x_scale: Tensor | None, w_scale: Tensor | None, dtype: torch.dtype
) -> Tensor:
    return _compiled()(x, w, ends, x_scale, w_scale, dtype)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(of_all_experts)


def triton_refused(case: Case, device: DeviceKind) -> str | None:
    refused = triton_unsupported(case, device) or unaligned(case, device)
    if refused or not case.number_format("w").scale:
        return refused
    if device == "cuda" and case["k"] < BLOCK:
        # A captured graph of 33 tokens and 48 codes gave other numbers on an H200, with Triton 3.6.
        return f"rows of codes have {BLOCK} at least"
    return fp8_unsupported(case, device)


try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def grouped_product(  # type: ignore[no-untyped-def]
        x,
        w,
        ends,
        x_scale,
        w_scale,
        y,
        n,
        k,
        experts,
        ends_e,
        x_scale_m,
        x_scale_k,
        w_scale_e,
        w_scale_n,
        w_scale_k,
        most_experts: tl.constexpr,
        rows_of_tiles,
        block_m: tl.constexpr,
        block_n: tl.constexpr,
        block_k: tl.constexpr,
        w_height: tl.constexpr,
        is_scaled: tl.constexpr,
        by_block: tl.constexpr,
        widen: tl.constexpr,
    ):
        """x and w are descriptors of tensors, w of all experts as one matrix. A tile may read rows of the next group,
        which it does not store. Each program finds its expert by the number of tiles of the experts before."""
        e = tl.arange(0, most_experts)
        end = tl.load(ends + e * ends_e, e < experts, 0)
        start = tl.load(ends + (e - 1) * ends_e, (e > 0) & (e < experts), 0)
        tiles = tl.where(e < experts, (end - start + block_m - 1) // block_m, 0)
        after = tl.cumsum(tiles, 0)
        # Programs that run together share the columns of an expert's weights, which stay in the L2.
        row, column = tl.program_id(0) % rows_of_tiles, tl.program_id(0) // rows_of_tiles
        is_mine = (after - tiles <= row) & (row < after)
        expert = tl.sum(tl.where(is_mine, e, 0), 0)
        top = tl.sum(tl.where(is_mine, start + (row - after + tiles) * block_m, 0), 0)
        stop = tl.sum(tl.where(is_mine, end, 0), 0)
        if top < stop:
            i = top + tl.arange(0, block_m).to(tl.int64)
            j = column * block_n + tl.arange(0, block_n)
            if is_scaled:
                # Scales of what is not stored are those of the last row and column.
                left = x_scale + tl.minimum(i, stop - 1) * x_scale_m
                right = w_scale + expert.to(tl.int64) * w_scale_e + tl.minimum(j, n - 1) // w_height * w_scale_n
            total = tl.zeros((block_m, block_n), tl.float32)
            for block in range(0, tl.cdiv(k, block_k)):
                rows = x.load([top, block * block_k])
                columns = w.load([expert * n + column * block_n, block * block_k]).T
                if widen:
                    rows, columns = rows.to(tl.float32), columns.to(tl.float32)
                if by_block:
                    x_factor, w_factor = tl.load(left + block * x_scale_k), tl.load(right + block * w_scale_k)
                    total += tl.dot(rows, columns) * x_factor[:, None] * w_factor[None, :]
                else:
                    total = tl.dot(rows, columns, total, input_precision="ieee")
            if is_scaled and not by_block:
                total = total * tl.load(left)[:, None] * tl.load(right)[None, :]
            inside = (i[:, None] < stop) & (j[None, :] < n)
            tl.store(y + i[:, None] * n + j[None, :], total.to(y.dtype.element_ty), inside)


def tile_of(rows_each: float, element_bytes: int, by_block: bool) -> tuple[int, int, int, int]:
    """(rows, columns, warps, stages) of a tile, for so many rows of an expert on average."""
    if element_bytes == 4:
        return 64, 64, 4, 2
    if rows_each <= 128:
        return 64, 128, 4, 4
    return (128, 128, 8, 3) if by_block else (128, 256, 8, 3)


@operator.variant(
    "triton",
    idea="one launch for all experts: tiles by TMA, and each program finds its expert in the sizes",
    outcome="tiles of small groups are not full",
    unsupported=triton_refused,
)
def triton_grouped(
    x: Tensor, w: Tensor, ends: Tensor, x_scale: Tensor | None, w_scale: Tensor | None, dtype: torch.dtype
) -> Tensor:
    from triton.tools.tensor_descriptor import TensorDescriptor

    (tokens, k), (experts, n, _) = x.shape, w.shape
    y = x.new_empty(tokens, n, dtype=dtype)
    if y.numel() == 0:
        return y
    strides, height, by_block = [0] * 5, 1, False
    if x_scale is not None and w_scale is not None:
        # One scale for all columns is read again for each block of them.
        strides = [
            stride if count > 1 else 0
            for scale in (x_scale, w_scale)
            for count, stride in zip(scale.shape, scale.stride(), strict=True)
        ]
        height = 1 if w_scale.shape[1] == n else BLOCK
        by_block = height > 1 or x_scale.shape[1] > 1 or w_scale.shape[2] > 1
    block_m, block_n, warps, stages = tile_of(tokens / experts, x.element_size(), by_block)
    block_k = BLOCK // x.element_size()
    rows = TensorDescriptor.from_tensor(aligned(x.contiguous()), [block_m, block_k])
    weights = TensorDescriptor.from_tensor(aligned(w.contiguous()).view(experts * n, k), [block_n, block_k])
    # Every expert may have one tile that is not full.
    rows_of_tiles = triton.cdiv(tokens, block_m) + min(experts, tokens)
    arguments = (rows, weights, ends, x_scale, w_scale, y, n, k, experts, ends.stride(0), *strides)
    grouped_product[(rows_of_tiles * triton.cdiv(n, block_n),)](
        *arguments,
        triton.next_power_of_2(experts),
        rows_of_tiles,
        block_m,
        block_n,
        block_k,
        height,
        x_scale is not None,
        by_block,
        triton_interpreted(),
        num_warps=warps,
        num_stages=stages,
    )
    return y
