"""Rows of a table by their indices, out[i] = W[index[i]], and the gradient, which sums the incoming gradients of each
row.

The layout of a case is the distribution of its indices: uniform over the table, Zipf's law as for words (layout zipf),
or all on one row (layout same), where all additions of the gradient collide. Row `padding` gets no gradient.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported, triton_unsupported

from ._compiled import compiled
from ._gradients import once_differentiable

ATOMIC, SORTED = 3, 4
"""Versions of the native operator: how its gradient is summed."""

ONE_HOT_BYTES = 2 << 30
"""Beyond this size of the one-hot matrix, its product says nothing about embeddings any more."""

_FINE = 1 << 24


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    rows, shape = case["rows"], case["ids"]
    weight = make.normal(rows, case["width"])
    if case.layout == "same":
        indices = torch.full(shape, rows // 2, device=weight.device)
    elif case.layout == "zipf":
        # Index i comes with probability log((i + 2) / (i + 1)) / log(rows + 1).
        even = (make.integers(0, _FINE, *shape).double() + 0.5) / _FINE
        indices = ((rows + 1) ** even).long().sub_(1).clamp_(0, rows - 1)
    else:
        indices = make.integers(0, rows, *shape)
    if dict(case.sizes).get("index") == 32:
        indices = indices.int()
    return {"weight": weight, "indices": indices, "padding": dict(case.sizes).get("padding")}


def case_of(weight: Tensor, indices: Tensor, padding: int | None = None, **_prepared: Any) -> Case:
    return case(rows=weight.shape[0], width=weight.shape[1], ids=tuple(indices.shape))


def reference(weight: Tensor, indices: Tensor, padding: int | None = None) -> Tensor:
    out = weight[indices.long()]
    return out if padding is None else torch.where((indices == padding)[..., None], out.detach(), out)


def probabilities(case: Case) -> Tensor:
    """Probability of each row of the table for one index."""
    rows = case["rows"]
    if case.layout == "same":
        return F.one_hot(torch.tensor(rows // 2), rows).double()
    if case.layout == "zipf":
        return (torch.arange(1, rows + 2, dtype=torch.float64)).log().diff() / math.log(rows + 1)
    return torch.full((rows,), 1 / rows, dtype=torch.float64)


@functools.cache
def distinct(case: Case) -> int:
    """Expected number of distinct rows that the indices of a case name."""
    count = math.prod(case["ids"])
    return round(float((1 - (1 - probabilities(case)) ** count).sum()))


def cost(case: Case) -> Cost:
    """Forward copies; it reads each distinct row once.

    Backward reads a row of gradients per index and writes the gradient of the whole table, most of it zeros, with one
    addition per element read.
    """
    count, width = math.prod(case["ids"]), case["width"]
    index_bytes = count * dict(case.sizes).get("index", 64) // 8
    if case.direction == "fwd":
        return Cost(0, case.element_bytes * width * (count + distinct(case)) + index_bytes)
    return Cost(count * width, case.element_bytes * width * (count + case["rows"]) + index_bytes)


def depth(case: Case) -> int:
    """Forward, nothing is summed; backward, as many terms as the most frequent index has."""
    count = math.prod(case["ids"])
    return 1 if case.direction == "fwd" or not count else max(1, round(count * float(probabilities(case).max())))


def register_native() -> None:
    """Shapes for torch.compile, and the gradient, for the torch operators that the library defines."""

    @torch.library.register_fake("warpwatch::embedding")  # type: ignore[untyped-decorator]
    def fake(weight: Tensor, indices: Tensor, padding: int = -1, version: int = ATOMIC) -> Tensor:
        return weight.new_empty((*indices.shape, weight.shape[1]))

    @torch.library.register_fake("warpwatch::embedding_backward")  # type: ignore[untyped-decorator]
    def fake_backward(gradient: Tensor, indices: Tensor, rows: int, padding: int = -1) -> Tensor:
        return gradient.new_empty((rows, gradient.shape[-1]))

    @torch.library.register_fake("warpwatch::embedding_sorted_backward")  # type: ignore[untyped-decorator]
    def fake_sorted(gradient: Tensor, keys: Tensor, order: Tensor, rows: int, padding: int = -1) -> Tensor:
        return gradient.new_empty((rows, gradient.shape[-1]))

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        weight, indices, ctx.padding, ctx.version = inputs
        ctx.rows = weight.shape[0]
        ctx.save_for_backward(indices)

    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (indices,) = ctx.saved_tensors
        if ctx.version == ATOMIC:
            d = torch.ops.warpwatch.embedding_backward(gradient, indices, ctx.rows, ctx.padding)
        else:
            # Half as many bits are sorted in half as many passes.
            keys, order = indices.reshape(-1).int().sort(stable=True)
            d = torch.ops.warpwatch.embedding_sorted_backward(gradient, keys, order, ctx.rows, ctx.padding)
        return d, None, None, None

    torch.library.register_autograd("warpwatch::embedding", backward, setup_context=remember)


QUICK = both_directions(
    case("f32", rows=1001, width=64, ids=(13,)),
    case("f32", "fwd", "zipf", rows=500, width=96, ids=(4, 128)),
    case("bf16", "fwd", "same", rows=300, width=33, ids=(257,), index=32),
    case("f32", rows=97, width=64, ids=(300,), padding=5),
)
FULL = (
    *QUICK,
    *both_directions(
        case("f32", rows=7853, width=256, ids=(13,)),
        *(
            case("bf16", "fwd", layout, rows=50257, width=768, ids=(8, 1024))
            for layout in ("contiguous", "zipf", "same")
        ),
        *(
            case("f32", "fwd", layout, rows=50257, width=768, ids=(8, 1024))
            for layout in ("contiguous", "zipf", "same")
        ),
        case("f16", "fwd", "zipf", rows=50257, width=768, ids=(8, 1024), index=32, padding=0),
        case("f64", "fwd", "zipf", rows=50257, width=768, ids=(8, 1024)),
        case("bf16", "fwd", "zipf", rows=128256, width=4096, ids=(8, 1024)),
    ),
    case("bf16", rows=128256, width=4096, ids=(1,)),
)
EDGE = (
    *both_directions(
        case("f32", rows=1, width=1, ids=(1,)),
        case("f32", "fwd", "same", rows=3, width=130, ids=(97,), padding=1),
        case("f16", "fwd", "zipf", rows=40, width=24, ids=(5, 13)),
    ),
    case("f64", "bwd", "same", rows=9, width=6, ids=(64,), index=32),
    case("f32", "bwd", "same", rows=5, width=4, ids=(65,)),
    case("f32", rows=7, width=5, ids=(0,)),
    case("f32", "bwd", rows=7, width=5, ids=(0,)),
)

operator = Operator(
    "embedding",
    "Rows of a table by their indices.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("weight",),
    depth=depth,
    native=register_native,
)


def one_hot_unsupported(case: Case, _device: DeviceKind) -> str | None:
    size = math.prod(case["ids"]) * case["rows"] * case.element_bytes
    return f"its one-hot matrix would take {size / 2**30:.1f} GiB" if size > ONE_HOT_BYTES else None


@operator.variant(
    "v1",
    idea="product of a one-hot matrix and the table, as the definition says",
    unsupported=one_hot_unsupported,
    no_special_values="a product with zeros carries a NaN of any row into all results",
)
def v1(weight: Tensor, indices: Tensor, padding: int | None) -> Tensor:
    hot = (indices[..., None] == torch.arange(weight.shape[0], device=weight.device)).to(weight.dtype)
    out = hot @ weight
    return out if padding is None else torch.where((indices == padding)[..., None], out.detach(), out)


@operator.variant("v2", idea="F.embedding")
def v2(weight: Tensor, indices: Tensor, padding: int | None) -> Tensor:
    return F.embedding(indices, weight, padding)


@operator.variant(
    "v3",
    idea=(
        "CUDA: a warp per row, gradients by atomic additions of four floats; C++: indices sorted by counting, "
        "columns over threads"
    ),
    native=True,
)
def v3(weight: Tensor, indices: Tensor, padding: int | None) -> Tensor:
    return _native(weight, indices, padding, ATOMIC)


@operator.variant(
    "v4",
    idea="deterministic: indices sorted, frequent ones summed in chunks, each row of the gradient written once",
    outcome="the gradient is deterministic",
    native=True,
    devices=("cuda",),
    unsupported=lambda case, device: "looks rows up as v3 does" if case.direction == "fwd" else None,
)
def v4(weight: Tensor, indices: Tensor, padding: int | None) -> Tensor:
    return _native(weight, indices, padding, SORTED)


@operator.variant("compile", idea="torch.compile of v2", unsupported=compile_unsupported)
def compiled_v2(weight: Tensor, indices: Tensor, padding: int | None) -> Tensor:
    return _compiled()(weight, indices, padding)


@operator.variant(
    "triton",
    idea="one program per index; gradients by atomic additions in float32",
    unsupported=triton_unsupported,
)
def triton_embedding(weight: Tensor, indices: Tensor, padding: int | None) -> Tensor:
    out: Tensor = TritonEmbedding.apply(weight, indices, -1 if padding is None else padding)  # type: ignore[no-untyped-call]
    return out


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v2)


def _native(weight: Tensor, indices: Tensor, padding: int | None, version: int) -> Tensor:
    out: Tensor = torch.ops.warpwatch.embedding(weight, indices, -1 if padding is None else padding, version)
    return out


try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def gather_kernel(weight, indices, out, width, block: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0).to(tl.int64)
        row = tl.load(indices + i).to(tl.int64)
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < width
        tl.store(out + i * width + column, tl.load(weight + row * width + column, inside), inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def scatter_kernel(gradient, indices, total, width, padding, block: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0).to(tl.int64)
        row = tl.load(indices + i).to(tl.int64)
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = (column < width) & (row != padding)
        g = tl.load(gradient + i * width + column, inside).to(total.dtype.element_ty)
        tl.atomic_add(total + row * width + column, g, inside)


class TritonEmbedding(torch.autograd.Function):
    """The look-up in Triton, and its gradient summed by atomic additions."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.rows, ctx.padding = weight.shape[0], padding
        weight, indices = weight.contiguous(), indices.contiguous()
        out = weight.new_empty((*indices.shape, weight.shape[1]))
        if out.numel():
            gather_kernel[_grid(indices, weight.shape[1])](
                weight, indices, out, weight.shape[1], _block(weight.shape[1])
            )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (indices,) = ctx.saved_tensors
        gradient, indices = gradients[0].contiguous(), indices.contiguous()
        width = gradient.shape[-1]
        summed_as = torch.float64 if gradient.dtype == torch.float64 else torch.float32
        total = torch.zeros(ctx.rows, width, dtype=summed_as, device=gradient.device)
        if gradient.numel():
            scatter_kernel[_grid(indices, width)](gradient, indices, total, width, ctx.padding, _block(width))
        return total.to(gradient.dtype), None, None


def _block(width: int) -> int:
    block: int = min(1024, triton.next_power_of_2(width))
    return block


def _grid(indices: Tensor, width: int) -> tuple[int, int]:
    return indices.numel(), triton.cdiv(width, _block(width))
