"""A stencil over a line, y[i] = w0 x[i-3] + … + w3 x[i] + … + w6 x[i+3], with zeros beyond the ends: neighbouring
outputs share inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported, triton_unsupported

from ._compiled import compiled
from ._gradients import once_differentiable

SHARED, VECTORS = 3, 4
"""Versions of the native operator, numbered as in csrc/stencil1d/stencil1d.h."""

RADIUS = 3
TAPS = 2 * RADIUS + 1


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    return {"x": make.normal(case["n"]), "w": make.normal(TAPS)}


def case_of(x: Tensor, w: Tensor, **_prepared: Any) -> Case:
    return case(n=x.shape[0])


def reference(x: Tensor, w: Tensor) -> Tensor:
    n = x.shape[0]
    padded = F.pad(x, (RADIUS, RADIUS))
    y = torch.zeros_like(x)
    for j in range(TAPS):
        y = y + w[j] * padded[j : j + n]
    return y


def cost(case: Case) -> Cost:
    """Seven products and six sums per element; backward as many for dx, and seven products and sums for the taps."""
    n, element = case["n"], case.element_bytes
    if case.direction == "fwd":
        return Cost((2 * TAPS - 1) * n, element * (2 * n + TAPS))
    return Cost((2 * TAPS - 1) * n + 2 * TAPS * n, element * (3 * n + 2 * TAPS))


def register_native() -> None:
    """Shapes for torch.compile, and the gradients, for the torch operators that the library defines."""

    @torch.library.register_fake("warpwatch::stencil1d")  # type: ignore[untyped-decorator]
    def fake(x: Tensor, w: Tensor, version: int = SHARED) -> Tensor:
        return x.new_empty(x.shape)

    @torch.library.register_fake("warpwatch::stencil1d_backward")  # type: ignore[untyped-decorator]
    def fake_backward(gradient: Tensor, x: Tensor, w: Tensor, version: int = SHARED) -> tuple[Tensor, Tensor]:
        return x.new_empty(x.shape), w.new_empty(w.shape)

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, ctx.version = inputs
        ctx.save_for_backward(x, w)

    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        return (*torch.ops.warpwatch.stencil1d_backward(gradient, x, w, ctx.version), None)

    torch.library.register_autograd("warpwatch::stencil1d", backward, setup_context=remember)


QUICK = both_directions(case("f32", n=100_000), case("f32", n=65_537), case("f64", n=30_000))
FULL = (
    *QUICK,
    *both_directions(
        *(case("f32", n=2**power) for power in (16, 20, 24, 26, 28)), case("f32", n=10**7 + 3), case("f64", n=2**26)
    ),
)
EDGE = (
    *both_directions(*(case("f32", n=n) for n in (1, 7, 255, 4097))),
    *(case("f32", n=n) for n in (3, 4, 6, 256, 257, 259, 1023)),
    case("f64", "bwd", n=9),
    case("f32", n=0),
    case("f32", "bwd", n=0),
)

operator = Operator(
    "stencil1d",
    "A stencil of seven taps over a line.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("x", "w"),
    depth=lambda case: TAPS if case.direction == "fwd" else max(TAPS, case["n"]),
    native=register_native,
)


@operator.variant("v1", idea="seven shifted copies of a padded line, each multiplied and added")
def v1(x: Tensor, w: Tensor) -> Tensor:
    return reference(x, w)


def conv1d_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case["n"] == 0:
        return "conv1d takes no empty line"
    if case["n"] <= RADIUS and case.direction == "bwd" and device == "cuda":
        return "cuDNN leaves out the zeros beyond the ends, and with them a NaN that meets nothing else"
    return None


@operator.variant("v2", idea="F.conv1d", unsupported=conv1d_unsupported)
def v2(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(x[None, None], w[None, None], padding=RADIUS)[0, 0]


@operator.variant(
    "v3",
    idea=(
        "C++: one loop over whole vectors; CUDA: a block stages blockDim + 6 elements in shared memory and "
        "reads each seven times"
    ),
    outcome="one element per thread, and a barrier before it is read",
    native=True,
)
def v3(x: Tensor, w: Tensor) -> Tensor:
    return _native(x, w, SHARED)


@operator.variant(
    "v4",
    idea="16 bytes per access and neighbours from the first-level cache, no barrier; both gradients in one pass",
    outcome="forward the device's copy bandwidth is the limit",
    native=True,
    devices=("cuda",),
)
def v4(x: Tensor, w: Tensor) -> Tensor:
    return _native(x, w, VECTORS)


@operator.variant("compile", idea="torch.compile of v1", unsupported=compile_unsupported)
def compiled_v1(x: Tensor, w: Tensor) -> Tensor:
    return _compiled()(x, w)


@operator.variant(
    "triton",
    idea="one program per 1024 elements, neighbours by seven masked loads",
    outcome="each element is loaded seven times",
    unsupported=triton_unsupported,
)
def triton_stencil(x: Tensor, w: Tensor) -> Tensor:
    y: Tensor = TritonStencil.apply(x, w)  # type: ignore[no-untyped-call]
    return y


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v1)


def _native(x: Tensor, w: Tensor, version: int) -> Tensor:
    y: Tensor = torch.ops.warpwatch.stencil1d(x, w, version)
    return y


try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def stencil_kernel(x, w, y, n, mirrored: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        total = tl.zeros((block,), y.dtype.element_ty)
        for j in tl.static_range(7):
            near = i + j - 3
            tap = tl.load(w + (6 - j if mirrored else j))
            total += tap * tl.load(x + near, (near >= 0) & (near < n), 0.0)
        tl.store(y + i, total, i < n)

    @triton.jit  # type: ignore[untyped-decorator]
    def taps_kernel(g, x, partial, n, steps: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
        part, j = tl.program_id(0).to(tl.int64), tl.program_id(1)
        total = tl.zeros((block,), partial.dtype.element_ty)
        for step in range(steps):
            i = (part * steps + step) * block + tl.arange(0, block)
            near = i + j - 3
            total += tl.load(g + i, i < n, 0.0) * tl.load(x + near, (near >= 0) & (near < n) & (i < n), 0.0)
        tl.store(partial + part * 7 + j, tl.sum(total, 0))


class TritonStencil(torch.autograd.Function):
    """The Triton kernel; its gradients are the mirrored stencil, and partial sums over the line that torch adds up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return _triton_stencil(x, w, False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        g, x = gradients[0].contiguous(), x.contiguous()
        block, steps = 1024, 16
        partial = x.new_empty(triton.cdiv(x.numel(), block * steps), TAPS)
        if x.numel():
            taps_kernel[partial.shape](g, x, partial, x.numel(), steps, block)
        return _triton_stencil(g, w, True), partial.sum(0)


def _triton_stencil(x: Tensor, w: Tensor, mirrored: bool) -> Tensor:
    x, w = x.contiguous(), w.contiguous()
    y = torch.empty_like(x)
    if y.numel():
        stencil_kernel[(triton.cdiv(y.numel(), 1024),)](x, w, y, y.numel(), mirrored, 1024)
    return y
