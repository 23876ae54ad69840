"""C = op(A) · op(B) as an autograd function, op being the matrix itself or its transpose.

Operands are matrices or batches of them. One that is a single matrix stands for every matrix of the other's batch.
"""

from __future__ import annotations

import atexit
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, Precision, both_directions, case
from warpwatch.peers import compile_unsupported

from ._compiled import compiled
from ._gradients import once_differentiable


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    return {
        "a": make.normal(*case["a"]),
        "b": make.normal(*case["b"]),
        "trans_a": bool(case["ta"]),
        "trans_b": bool(case["tb"]),
    }


def reference(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    return torch.matmul(a.mT if trans_a else a, b.mT if trans_b else b)


def extents(case: Case) -> tuple[int, int, int, int]:
    """(batch, m, n, k) of the product: `batch` matrices of m x n, each element a sum of k terms."""
    a, b = case["a"], case["b"]
    m, k = reversed(a[-2:]) if case["ta"] else a[-2:]
    n = b[-2] if case["tb"] else b[-1]
    return math.prod((a if len(a) > 2 else b)[:-2]), m, n, k


def cost(case: Case) -> Cost:
    """Backward is two products of the same size, reads A, B and the gradient and writes dA and dB."""
    batch, m, n, k = extents(case)
    operands, result = math.prod(case["a"]) + math.prod(case["b"]), batch * m * n
    flops = 2 * batch * m * n * k
    if case.direction == "fwd":
        return Cost(flops, case.element_bytes * (operands + result))
    return Cost(2 * flops, case.element_bytes * (2 * operands + result))


def depth(case: Case) -> int:
    """The gradient of a matrix that stands for a whole batch sums over that batch as well."""
    batch, m, n, k = extents(case)
    if case.direction == "fwd":
        return k
    return max(
        n * (batch if len(case["a"]) < len(case["b"]) else 1), m * (batch if len(case["b"]) < len(case["a"]) else 1)
    )


@functools.cache
def register_native() -> None:
    """Shapes for torch.compile, the gradients, and the end of the cuBLAS handles, for the library's torch operators."""

    @torch.library.register_fake("warpwatch::cublas_matmul")  # type: ignore[untyped-decorator]
    def fake(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, tf32: bool = False) -> Tensor:
        m, n = a.shape[-1 if trans_a else -2], b.shape[-2 if trans_b else -1]
        return a.new_empty((*(a if a.dim() > 2 else b).shape[:-2], m, n))

    @torch.library.register_fake("warpwatch::cublas_matmul_backward")  # type: ignore[untyped-decorator]
    def fake_backward(
        gradient: Tensor, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, tf32: bool = False
    ) -> tuple[Tensor, Tensor]:
        return a.new_empty(a.shape), b.new_empty(b.shape)

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, *ctx.how = inputs
        ctx.save_for_backward(a, b)

    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        return *torch.ops.warpwatch.cublas_matmul_backward(gradient, a, b, *ctx.how), None, None, None

    torch.library.register_autograd("warpwatch::cublas_matmul", backward, setup_context=remember)
    # Python's exit handlers run while CUDA still works; destructors in the library would run when it may not.
    atexit.register(torch.ops.warpwatch.cublas_matmul_close)


def four(a: tuple[int, ...], b: tuple[int, ...], precision: Precision = "f32") -> tuple[Case, ...]:
    """The product of op(A) with shape `a` and op(B) with shape `b` in all four ways that the operands may be stored."""

    def stored(shape: tuple[int, ...], transposed: int) -> tuple[int, ...]:
        return (*shape[:-2], shape[-1], shape[-2]) if transposed else shape

    return tuple(case(precision, a=stored(a, ta), b=stored(b, tb), ta=ta, tb=tb) for ta in (0, 1) for tb in (0, 1))


def plain(a: tuple[int, ...], b: tuple[int, ...], precision: Precision = "f32") -> Case:
    return four(a, b, precision)[0]


QUICK = both_directions(
    *four((129, 65), (65, 97)),
    *four((5, 33, 17), (17, 21)),
    *four((19, 23), (4, 23, 31)),
    *four((2, 2, 2, 9, 7), (2, 2, 2, 7, 11)),
    plain((4, 64, 64), (4, 64, 64)),
    plain((2, 3, 31, 33), (2, 3, 33, 29)),
    plain((64, 48), (48, 80), "f64"),
    four((66, 40), (40, 50), "bf16")[1],
    four((66, 40), (40, 50), "f16")[2],
)
FULL = (
    *QUICK,
    *both_directions(
        *(c for p in ("f32", "tf32", "bf16") for c in four((4096, 4096), (4096, 4096), p)),
        plain((4096, 4096), (4096, 4096), "f16"),
        plain((2048, 2048), (2048, 2048), "f64"),
        *four((64, 512, 512), (64, 512, 512)),
        *four((64, 512, 512), (64, 512, 512), "bf16"),
        four((16, 16, 512, 64), (16, 16, 64, 512))[1],
        four((16, 16, 512, 64), (16, 16, 64, 512), "bf16")[1],
        plain((16, 16, 512, 512), (16, 16, 512, 64), "bf16"),
        *four((32, 512, 1024), (1024, 4096), "bf16"),
        *four((1024, 1024), (32, 1024, 256), "bf16"),
        plain((32, 512, 1024), (1024, 4096)),
        plain((1024, 1024), (32, 1024, 256)),
        *four((2, 4, 8, 256, 128), (2, 4, 8, 128, 256)),
        plain((1023, 1025), (1025, 1027)),
    ),
)
EDGE = (
    *both_directions(
        plain((1, 1), (1, 1)),
        *four((1, 7), (7, 1)),
        plain((97, 257), (257, 193)),
        plain((3, 1, 2, 1, 5, 4), (3, 1, 2, 1, 4, 6)),
        four((1, 6, 5), (5, 3))[3],
    ),
    plain((0, 5), (5, 3)),
    plain((4, 0), (0, 3)),
    plain((0, 4, 5), (5, 3)),
)

operator = Operator(
    "cublas_matmul",
    "C = op(A) op(B) for matrices and batches of them, transposed or not.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("a", "b"),
    depth=depth,
    native=register_native,
)


@operator.variant("v1", idea="one product per matrix of the batch, stacked")
def v1(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    left, right = a.mT if trans_a else a, b.mT if trans_b else b
    batch = (a if a.dim() > 2 else b).shape[:-2]
    lefts, rights = (
        x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]).expand(math.prod(batch), *x.shape[-2:]) for x in (left, right)
    )
    if not math.prod(batch):
        return torch.bmm(lefts, rights).reshape(*batch, left.shape[-2], right.shape[-1])
    return torch.stack([torch.mm(x, y) for x, y in zip(lefts, rights, strict=True)]).reshape(
        *batch, left.shape[-2], right.shape[-1]
    )


@operator.variant("v2", idea="torch.matmul of transposed views, which torch passes to the library without a copy")
def v2(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    return torch.matmul(a.mT if trans_a else a, b.mT if trans_b else b)


@operator.variant("einsum", idea="torch.einsum, which turns every product into one batched one")
def einsum(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    left = ("..." if a.dim() > 2 else "") + ("ki" if trans_a else "ik")
    right = ("..." if b.dim() > 2 else "") + ("jk" if trans_b else "kj")
    return torch.einsum(f"{left},{right}->...ij", a, b)


def no_tf32(case: Case, _device: DeviceKind) -> str | None:
    return "computes in f32: see the f32 case" if case.precision == "tf32" else None


@operator.variant(
    "v3",
    idea=(
        "C++ blocked for registers and cache; panels are packed from any strides, and a sum over the batch is "
        "one longer sum"
    ),
    native=True,
    devices=("cpu",),
    unsupported=no_tf32,
)
def v3(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    return _native(a, b, trans_a, trans_b)


@operator.variant(
    "cublas",
    idea=(
        "cublasGemmEx and StridedBatchedEx called directly: a handle per thread and device, one call for any "
        "rank and most views"
    ),
    outcome="torch's own call runs the same kernel of the library",
    native=True,
    devices=("cuda",),
)
def cublas(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    return _native(a, b, trans_a, trans_b)


@operator.variant("compile", idea="torch.compile of v2", unsupported=compile_unsupported)
def compiled_v2(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    return _compiled()(a, b, trans_a, trans_b)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v2)


def _native(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    c: Tensor = torch.ops.warpwatch.cublas_matmul(a, b, trans_a, trans_b, torch.backends.cuda.matmul.allow_tf32)
    return c
