"""cat(parts), and cat(parts) · Wᵀ without the concatenation: the product reads the parts from their own memory.

`consumer` is the number of outputs of the product behind the concatenation, 0 for the concatenation alone. Parts have
the shape of the decoder: an embedding and a state for the GRU (1, B, ·), or an embedding, a state and a context for the
vocabulary (B, ·).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported, triton_unsupported

from . import matmul
from ._compiled import compiled
from ._gradients import once_differentiable
from ._triton_linear import product

ROWS, TILES = 3, 5
"""Versions of the native operator, numbered as in csrc/common/row_products.h."""

MOST_ROWS = 8
"""Rows that the CUDA backward kernel keeps in registers, as in csrc/common/row_products.h."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    rows, widths, consumer = case["rows"], case["parts"], case["consumer"]
    leading = rows if isinstance(rows, tuple) else (rows,)
    parts = [make.normal(*leading, width) for width in widths]
    depth = sum(widths)
    return {"parts": parts, "w": make.normal(consumer, depth, scale=max(1, depth) ** -0.5) if consumer else None}


def case_of(parts: Sequence[Tensor], w: Tensor | None, **_prepared: Any) -> Case:
    widths = tuple(part.shape[-1] for part in parts)
    return case(rows=tuple(parts[0].shape[:-1]), parts=widths, consumer=0 if w is None else w.shape[0])


def reference(parts: Sequence[Tensor], w: Tensor | None) -> Tensor:
    whole = torch.cat(list(parts), dim=-1)
    return whole if w is None else whole @ w.t()


def _rows(case: Case) -> int:
    rows = case["rows"]
    return math.prod(rows) if isinstance(rows, tuple) else int(rows)


def _flat(parts: Sequence[Tensor]) -> list[Tensor]:
    """The parts as matrices; a part may have no columns."""
    return [part.flatten(0, -2) if part.dim() > 2 else part for part in parts]


def _blocks(w: Tensor, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The columns of W that belong to each part."""
    return torch.split(w, [part.shape[-1] for part in parts], dim=1)


def cost(case: Case) -> Cost:
    """The parts are read once.

    Alone, they are written once, in both directions; in front of a product, the concatenation costs nothing.
    """
    batch, depth, outputs = _rows(case), sum(case["parts"]), case["consumer"]
    if not outputs:
        return Cost(0, 2 * case.element_bytes * batch * depth)
    flops, x, w, y = 2 * batch * depth * outputs, batch * depth, depth * outputs, batch * outputs
    if case.direction == "fwd":
        return Cost(flops, case.element_bytes * (x + w + y))
    return Cost(2 * flops, case.element_bytes * (2 * x + 2 * w + y))


def depth(case: Case) -> int:
    if not case["consumer"]:
        return 1
    return sum(case["parts"]) if case.direction == "fwd" else max(case["consumer"], _rows(case))


def register_native() -> None:
    """Shapes for torch.compile, and the gradients, for the torch operators that the library defines."""

    @torch.library.register_fake("warpwatch::concat_linear")  # type: ignore[untyped-decorator]
    def fake(parts: list[Tensor], w: Tensor, version: int) -> Tensor:
        return w.new_empty((parts[0].shape[0], w.shape[0]))

    @torch.library.register_fake("warpwatch::concat_linear_backward")  # type: ignore[untyped-decorator]
    def fake_backward(gradient: Tensor, parts: list[Tensor], w: Tensor, version: int = ROWS) -> tuple[Tensor, Tensor]:
        return w.new_empty((parts[0].shape[0], w.shape[1])), w.new_empty(w.shape)

    def remember(ctx: Any, inputs: tuple[list[Tensor], Tensor, int], output: Tensor) -> None:
        parts, w, ctx.version = inputs
        ctx.save_for_backward(w, *parts)

    torch.library.register_autograd("warpwatch::concat_linear", _backward, setup_context=remember)


def register_all() -> None:
    register_native()
    matmul.register_native()


@once_differentiable
def _backward(ctx: Any, gradient: Tensor) -> tuple[list[Tensor], Tensor, None]:
    w, *parts = ctx.saved_tensors
    widths = [part.shape[1] for part in parts]
    if w.is_cuda and gradient.shape[0] > MOST_ROWS and ctx.version == ROWS:
        columns = [gradient.t() @ part for part in parts]
        return list((gradient @ w).split(widths, dim=1)), torch.cat(columns, dim=1), None
    dx, dw = torch.ops.warpwatch.concat_linear_backward(gradient, parts, w, ctx.version)
    # Each part's gradient is a view of the one that the product has.
    return list(dx.split(widths, dim=1)), dw, None


GRU_PARTS, GRU_OUTPUTS = (256, 512), 1536
VOCAB_PARTS, VOCAB = (256, 512, 512), 5893

QUICK = both_directions(
    case("f32", rows=(1, 4), parts=(64, 128), consumer=0),
    case("f32", rows=(1, 4), parts=(64, 128), consumer=384),
    case("f32", rows=1, parts=(64, 128, 128), consumer=301),
    case("f32", rows=13, parts=(17, 31, 5), consumer=77),
    case("f64", rows=3, parts=(64, 128, 128), consumer=0),
)
FULL = (
    *QUICK,
    *both_directions(
        *(case("f32", rows=(1, batch), parts=GRU_PARTS, consumer=n) for batch in (1, 8, 128) for n in (0, GRU_OUTPUTS)),
        *(case("f32", rows=batch, parts=VOCAB_PARTS, consumer=n) for batch in (1, 8, 128) for n in (0, VOCAB)),
        *(case(p, rows=batch, parts=VOCAB_PARTS, consumer=VOCAB) for p in ("tf32", "bf16") for batch in (1, 128)),
    ),
)
EDGE = (
    *both_directions(case("f32", rows=1, parts=(1, 1), consumer=7), case("f32", rows=9, parts=(63, 65), consumer=33)),
    *both_directions(case("f32", rows=7, parts=(8,), consumer=5)),
    *both_directions(case("f32", rows=130, parts=(33, 0, 70), consumer=101)),
    case("f32", rows=2, parts=(0, 4, 256), consumer=9),
    case("f32", rows=0, parts=(3, 4), consumer=0),
    case("f32", rows=0, parts=(3, 4), consumer=2),
)

operator = Operator(
    "concat",
    "Concatenation, alone and fused into the product that consumes it.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("parts", "w"),
    depth=depth,
    native=register_all,
    uses=("concat", "matmul"),
)


@operator.variant("v1", idea="torch.cat, then the product")
def v1(parts: Sequence[Tensor], w: Tensor | None) -> Tensor:
    whole = torch.cat(list(parts), dim=-1)
    return whole if w is None else torch.nn.functional.linear(whole, w)


@operator.variant(
    "slices", idea="writes each part into its slice of an allocated buffer, as the part's producer could do"
)
def slices(parts: Sequence[Tensor], w: Tensor | None) -> Tensor:
    whole = parts[0].new_empty((*parts[0].shape[:-1], sum(part.shape[-1] for part in parts)))
    start = 0
    for part in parts:
        whole[..., start : start + part.shape[-1]] = part
        start += part.shape[-1]
    return whole if w is None else torch.nn.functional.linear(whole, w)


def consumer_only(case: Case, _device: DeviceKind) -> str | None:
    return None if case["consumer"] else "there is no product to fuse the concatenation into"


@operator.variant(
    "v2",
    idea="the product split by column blocks of W, each added to the sum of those before: no concatenation",
    unsupported=consumer_only,
)
def v2(parts: Sequence[Tensor], w: Tensor) -> Tensor:
    flat, weights = _flat(parts), _blocks(w, parts)
    y = flat[0] @ weights[0].t()
    for part, weight in zip(flat[1:], weights[1:], strict=True):
        y = torch.addmm(y, part, weight.t())
    whole: Tensor = y.view(*parts[0].shape[:-1], w.shape[0])
    return whole


def native_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case.precision == "tf32":
        return "computes in f32: see the f32 case"
    if device == "cpu" and case.precision not in ("f32", "f64"):
        return "its C++ computes in f32 and f64"
    if device == "cuda" and _rows(case) > MOST_ROWS:
        return f"on CUDA it is made for at most {MOST_ROWS} rows; more are a case for tensor cores"
    return consumer_only(case, device)


@operator.variant(
    "v3",
    idea="our product reads x part by part: one launch, one pass over W, no concatenation",
    outcome="one launch instead of a concatenation and a product",
    native=True,
    unsupported=native_unsupported,
)
def v3(parts: Sequence[Tensor], w: Tensor) -> Tensor:
    y: Tensor = torch.ops.warpwatch.concat_linear(_flat(parts), w, ROWS)
    return y.view(*parts[0].shape[:-1], w.shape[0])


def low_precision_only(case: Case, device: DeviceKind) -> str | None:
    if case.precision == "f64" or (device == "cpu" and case.precision != "f32"):
        return "it multiplies in f32, and on GPUs in tf32 and bf16"
    if device == "cuda" and case.precision == "f32":
        return "v5 keeps the accuracy of f32 on tensor cores"
    return consumer_only(case, device)


@operator.variant(
    "v4",
    idea="tiles of our matmul for any number of rows, part by part with its columns of W; no concatenation",
    native=True,
    unsupported=low_precision_only,
)
def v4(parts: Sequence[Tensor], w: Tensor) -> Tensor:
    products = [
        matmul.best_native(part, weight.t()) for part, weight in zip(_flat(parts), _blocks(w, parts), strict=True)
    ]
    y = products[0]
    for product_of_part in products[1:]:
        y = y + product_of_part
    return y.view(*parts[0].shape[:-1], w.shape[0])


def f32_only(case: Case, device: DeviceKind) -> str | None:
    if case.precision != "f32":
        return "it multiplies floats, with the accuracy of f32: see the f32 case"
    return consumer_only(case, device)


@operator.variant(
    "v5",
    idea=(
        "tiles on tensor cores, each float as a sum of two tf32 numbers; the parts are segments of one sum, and where "
        "tiles are few, the blocks of a cluster share it"
    ),
    native=True,
    devices=("cuda",),
    unsupported=f32_only,
)
def v5(parts: Sequence[Tensor], w: Tensor) -> Tensor:
    y: Tensor = torch.ops.warpwatch.concat_linear(_flat(parts), w, TILES)
    return y.view(*parts[0].shape[:-1], w.shape[0])


@operator.variant("compile", idea="torch.compile of v1", unsupported=compile_unsupported)
def through_compiler(parts: Sequence[Tensor], w: Tensor | None) -> Tensor:
    return _compiled()(list(parts), w)


def triton_reason(case: Case, device: DeviceKind) -> str | None:
    if case.precision == "f64":
        return "its tiles of f64 would not fit"
    return consumer_only(case, device) or triton_unsupported(case, device)


@operator.variant(
    "triton",
    idea="one launch of tl.dot per part, which adds to the sums of the parts before",
    unsupported=triton_reason,
)
def triton_concat(parts: Sequence[Tensor], w: Tensor) -> Tensor:
    y: Tensor = TritonConcat.apply(w, *parts)  # type: ignore[no-untyped-call]
    return y


class TritonConcat(torch.autograd.Function):
    """The split product; a part's gradient is the incoming one times the part's own columns of W."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(w, *parts)
        y: Tensor | None = None
        for part, weight in zip(_flat(parts), _blocks(w, parts), strict=True):
            y = product(part, weight.t(), y)
        assert y is not None
        return y.view(*parts[0].shape[:-1], w.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        w, *parts = ctx.saved_tensors
        g = gradients[0].reshape(-1, w.shape[0])
        dw = torch.cat([product(g.t(), part) for part in _flat(parts)], dim=1)
        return dw, *(product(g, v).view(part.shape) for part, v in zip(parts, _blocks(w, parts), strict=True))


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v1)
