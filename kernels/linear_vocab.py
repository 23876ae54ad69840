"""y = x · Wᵀ + b onto a vocabulary: few rows of x, thousands of outputs, so that reading W takes nearly all of the
time.

W is (vocab, depth) with the depth contiguous, so no transpose is needed. The vocabulary is odd: rows of y are not
aligned.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported, triton_unsupported

from . import matmul
from ._compiled import compiled
from ._gradients import once_differentiable
from ._triton_linear import TritonLinear

ROWS, TILES = 3, 5
"""Versions of the native operator, numbered as in csrc/common/row_products.h."""

MOST_ROWS = 8
"""Rows of x that the CUDA backward kernel keeps in registers, as in csrc/common/row_products.h."""
ALIGNED = 8
"""Rows of y of a multiple of eight elements begin at 16 bytes in every precision that tensor cores take."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    depth, vocab = sum(case["parts"]), case["vocab"]
    scale = max(1, depth) ** -0.5
    x = make.normal(case["batch"], depth)
    return {"x": x, "w": make.normal(vocab, depth, scale=scale), "b": make.normal(vocab), "parts": case["parts"]}


def case_of(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...], **_prepared: Any) -> Case:
    return case(batch=x.shape[0], parts=tuple(parts), vocab=w.shape[0])


def reference(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...]) -> Tensor:
    return x @ w.t() + b


def cost(case: Case) -> Cost:
    """Forward reads x, W and b and writes y; backward reads x, W and the incoming gradient and writes a gradient for x,
    W and b."""
    batch, depth, vocab = case["batch"], sum(case["parts"]), case["vocab"]
    flops = 2 * batch * depth * vocab
    x, w, y = batch * depth, vocab * depth, batch * vocab
    if case.direction == "fwd":
        return Cost(flops, case.element_bytes * (x + w + vocab + y))
    return Cost(2 * flops, case.element_bytes * (2 * x + 2 * w + vocab + y))


def depth(case: Case) -> int:
    """Forward sums over the depth; dx over the vocabulary, dW and db over the batch."""
    return sum(case["parts"]) if case.direction == "fwd" else max(case["vocab"], case["batch"])


def register_native() -> None:
    """Shapes for torch.compile, and the gradients, for the torch operators that the library defines."""

    @torch.library.register_fake("warpwatch::linear_vocab")  # type: ignore[untyped-decorator]
    def fake(x: Tensor, w: Tensor, b: Tensor, version: int = ROWS) -> Tensor:
        return x.new_empty((x.shape[0], w.shape[0]))

    @torch.library.register_fake("warpwatch::linear_vocab_backward")  # type: ignore[untyped-decorator]
    def fake_backward(gradient: Tensor, x: Tensor, w: Tensor, version: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
        return x.new_empty(x.shape), w.new_empty(w.shape), w.new_empty((w.shape[0],))

    def remember(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
        x, w, _, ctx.version = inputs
        ctx.save_for_backward(x, w)

    torch.library.register_autograd("warpwatch::linear_vocab", _backward, setup_context=remember)


def register_all() -> None:
    register_native()
    matmul.register_native()


@once_differentiable
def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    if x.is_cuda and x.shape[0] > MOST_ROWS and ctx.version == ROWS:
        return gradient @ w, gradient.t() @ x, gradient.sum(0), None
    return (*torch.ops.warpwatch.linear_vocab_backward(gradient, x, w, ctx.version), None)


FULL_PARTS, FULL_VOCAB = (256, 512, 512), 5893

QUICK = both_directions(
    *(case("f32", batch=batch, parts=(64, 128, 128), vocab=1473) for batch in (1, 8)),
    case("f32", batch=33, parts=(31, 65, 64), vocab=301),
    case("f64", batch=3, parts=(64, 128, 128), vocab=301),
)
FULL = (
    *QUICK,
    *both_directions(
        *(
            case(p, batch=batch, parts=FULL_PARTS, vocab=FULL_VOCAB)
            for p in ("f32", "tf32", "bf16")
            for batch in (1, 8, 128)
        ),
        case("f64", batch=8, parts=FULL_PARTS, vocab=FULL_VOCAB),
        case("f32", batch=1, parts=FULL_PARTS, vocab=5896),
    ),
)
EDGE = (
    *both_directions(case("f32", batch=1, parts=(1, 1, 1), vocab=7), case("f32", batch=7, parts=(3, 4, 5), vocab=33)),
    *both_directions(case("f32", batch=9, parts=(128, 256, 256), vocab=65)),
    *both_directions(case("f32", batch=130, parts=(33, 0, 70), vocab=101)),
    case("f32", batch=2, parts=(256, 0, 4), vocab=127),
    case("f32", batch=0, parts=(4, 8, 8), vocab=5),
)

operator = Operator(
    "linear_vocab",
    "Linear layer onto a vocabulary: few rows, thousands of outputs.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("x", "w", "b"),
    depth=depth,
    native=register_all,
    uses=("linear_vocab", "matmul"),
)


@operator.variant("v1", idea="matmul(x, W.T) + b: adding b is a second pass over y")
def v1(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...]) -> Tensor:
    return torch.matmul(x, w.t()) + b


@operator.variant("v2", idea="F.linear")
def v2(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...]) -> Tensor:
    return torch.nn.functional.linear(x, w, b)


@operator.variant("addmm", idea="torch.addmm, on CUDA cuBLASLt with the bias added in its epilogue")
def addmm(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...]) -> Tensor:
    return torch.addmm(b, x, w.t())


@operator.variant(
    "split",
    idea="one product per column block, each added to the sum of those before: a decoder without a concatenation",
)
def split(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...]) -> Tensor:
    columns, weights = torch.split(x, list(parts), dim=1), torch.split(w, list(parts), dim=1)
    y = torch.addmm(b, columns[0], weights[0].t())
    for part, weight in zip(columns[1:], weights[1:], strict=True):
        y = torch.addmm(y, part, weight.t())
    return y


def pad(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...]) -> dict[str, Any]:
    """W and b with rows of zeros up to a multiple of eight outputs."""
    missing = math.ceil(w.shape[0] / ALIGNED) * ALIGNED - w.shape[0]
    return {
        "padded_w": torch.nn.functional.pad(w, (0, 0, 0, missing)),
        "padded_b": torch.nn.functional.pad(b, (0, missing)),
    }


@operator.variant(
    "padded",
    idea=(
        "W padded beforehand to a multiple of eight outputs, so that rows of y are aligned for tensor-core "
        "kernels; y is a view"
    ),
    prepare=pad,
)
def padded(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...], padded_w: Tensor, padded_b: Tensor) -> Tensor:
    return torch.addmm(padded_b, x, padded_w.t())[:, : w.shape[0]]


def native_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case.precision == "tf32":
        return "computes in f32: see the f32 case"
    if device == "cpu":
        return None if case.precision in ("f32", "f64") else "its C++ computes in f32 and f64"
    return (
        None
        if case["batch"] <= MOST_ROWS
        else f"on CUDA it is made for at most {MOST_ROWS} rows; more are a case for tensor cores"
    )


@operator.variant(
    "v3",
    idea="C++: tiles of rows times rows; CUDA: a warp per few rows of W, each weight read once, 16 bytes per lane",
    outcome="with one row memory bandwidth is the limit",
    native=True,
    unsupported=native_unsupported,
)
def v3(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...]) -> Tensor:
    y: Tensor = torch.ops.warpwatch.linear_vocab(x, w, b)
    return y


def low_precision_only(case: Case, device: DeviceKind) -> str | None:
    if case.precision == "f64" or (device == "cpu" and case.precision != "f32"):
        return "it multiplies in f32, and on GPUs in tf32 and bf16"
    return "v5 keeps the accuracy of f32 on tensor cores" if device == "cuda" and case.precision == "f32" else None


@operator.variant(
    "v4",
    idea="tiles of our matmul, for any number of rows: W is read once per tile of rows; both gradients by the same",
    native=True,
    unsupported=low_precision_only,
)
def v4(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...]) -> Tensor:
    return matmul.best_native(x, w.t()) + b


def f32_only(case: Case, _device: DeviceKind) -> str | None:
    return None if case.precision == "f32" else "it multiplies floats, with the accuracy of f32: see the f32 case"


@operator.variant(
    "v5",
    idea=(
        "tiles of x times rows of W on tensor cores, each float as a sum of two tf32 numbers; where tiles are few, "
        "the blocks of a cluster share the sum of one"
    ),
    native=True,
    devices=("cuda",),
    unsupported=f32_only,
)
def v5(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...]) -> Tensor:
    y: Tensor = torch.ops.warpwatch.linear_vocab(x, w, b, TILES)
    return y


@operator.variant("compile", idea="torch.compile of v1", unsupported=compile_unsupported)
def through_compiler(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...]) -> Tensor:
    return _compiled()(x, w, b)


def no_wide_triton(case: Case, device: DeviceKind) -> str | None:
    return "its tiles of f64 would not fit" if case.precision == "f64" else triton_unsupported(case, device)


@operator.variant(
    "triton",
    idea="tiles of 16 rows and 64 outputs through tl.dot, bias added at the end",
    outcome="tl.dot computes 16 rows where there is one",
    unsupported=no_wide_triton,
)
def triton_linear(x: Tensor, w: Tensor, b: Tensor, parts: tuple[int, ...]) -> Tensor:
    y: Tensor = TritonLinear.apply(x, w, b)  # type: ignore[no-untyped-call]
    return y


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(_plain)


def _plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(x, w.t()) + b
