"""Causal convolution with a filter as long as the row: out[t] = eps + sum over u <= t of w[T - 1 - (t - u)] k[u], per
channel.

k is (batch, channels, length), w is (channels, length), and eps is one number. The last tap of w weights the present
element.
"""

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

CUDA_CORES, TENSOR_CORES, SPLIT_TENSOR_CORES = 3, 4, 5
"""Versions of the native operator, numbered as in csrc/causal_conv/causal_conv.h."""

_PADDED = "conv1d multiplies the zeros that rows are padded with, which carry NaN to taps that no output of the row has"
_TRIANGLE = "a tile on the diagonal multiplies what lies above it by zeros, which carry NaN to earlier outputs"


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    channels, length = case["channels"], case["length"]
    k = make.normal(case["batch"], channels, length)
    # This scale keeps the size of the numbers.
    return {"k": k, "w": make.normal(channels, length, scale=max(length, 1) ** -0.5), "eps": make.normal()}


def case_of(k: Tensor, w: Tensor, eps: Tensor, **_prepared: Any) -> Case:
    return case(batch=k.shape[0], channels=k.shape[1], length=k.shape[2])


def reference(k: Tensor, w: Tensor, eps: Tensor) -> Tensor:
    """Distance by distance: one tap weights all elements d places back."""
    length = k.shape[2]
    y = eps.expand(k.shape).clone()
    for d in range(length):
        y[..., d:] += w[:, length - 1 - d, None] * k[..., : length - d]
    return y


def cost(case: Case) -> Cost:
    """A product and a sum per pair u <= t; backward twice that, for k and w, and one sum per output for eps."""
    batch, channels, length = case["batch"], case["channels"], case["length"]
    elements, pairs = batch * channels * length, batch * channels * length * (length + 1)
    if case.direction == "fwd":
        return Cost(pairs, case.element_bytes * (2 * elements + channels * length + 1))
    return Cost(2 * pairs + elements, case.element_bytes * (3 * elements + 2 * channels * length + 1))


def depth(case: Case) -> int:
    """Forward a row; backward all outputs are summed for eps."""
    if case.direction == "fwd":
        return max(1, int(case["length"]))
    return max(1, int(case["batch"] * case["channels"] * case["length"]))


def register_native() -> None:
    """Shapes for torch.compile, and the gradients, for the torch operators that the library defines."""

    @torch.library.register_fake("warpwatch::causal_conv")  # type: ignore[untyped-decorator]
    def fake(k: Tensor, w: Tensor, eps: Tensor, version: int = CUDA_CORES) -> Tensor:
        return k.new_empty(k.shape)

    @torch.library.register_fake("warpwatch::causal_conv_backward")  # type: ignore[untyped-decorator]
    def fake_backward(gradient: Tensor, k: Tensor, w: Tensor, version: int = CUDA_CORES) -> tuple[Tensor, Tensor]:
        return k.new_empty(k.shape), w.new_empty(w.shape)

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        k, w, _, ctx.version = inputs
        ctx.save_for_backward(k, w)

    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        k, w = ctx.saved_tensors
        dk, dw = torch.ops.warpwatch.causal_conv_backward(gradient, k, w, ctx.version)
        return dk, dw, gradient.sum(), None

    torch.library.register_autograd("warpwatch::causal_conv", backward, setup_context=remember)


QUICK = both_directions(
    case("f32", batch=4, channels=16, length=96),
    case("f32", batch=3, channels=5, length=131),
    case("f64", batch=7, channels=4, length=70),
    case("tf32", batch=2, channels=8, length=64),
)
FULL = (
    *QUICK,
    *both_directions(
        *(case(p, batch=32, channels=768, length=768) for p in ("f32", "tf32")),
        *(case(p, batch=8, channels=1024, length=1024) for p in ("f32", "tf32")),
        *(case(p, batch=64, channels=512, length=512) for p in ("f32", "tf32")),
        *(case(p, batch=16, channels=64, length=4096) for p in ("f32", "tf32")),
        *(case(p, batch=33, channels=100, length=1001) for p in ("f32", "tf32")),
        case("f64", batch=32, channels=256, length=512),
    ),
    case("f32", batch=1, channels=768, length=768),
)
EDGE = (
    *both_directions(
        case("f32", batch=1, channels=1, length=1),
        case("f32", batch=2, channels=2, length=17),
        case("f64", batch=1, channels=1, length=33),
        case("tf32", batch=33, channels=1, length=65),
        case("f32", batch=33, channels=1, length=257),
    ),
    case("f32", batch=2, channels=3, length=0),
)

operator = Operator(
    "causal_conv",
    "Causal convolution per channel with a filter as long as the row.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("k", "w", "eps"),
    depth=depth,
    native=register_native,
)


def empty_unsupported(case: Case, _device: DeviceKind) -> str | None:
    return None if case["length"] else "takes no empty row"


def full_precision_only(case: Case, device: DeviceKind) -> str | None:
    return "computes in f32: see the f32 case" if case.precision == "tf32" else empty_unsupported(case, device)


@operator.variant(
    "v1", idea="pad, then conv1d with a group per channel", unsupported=empty_unsupported, no_special_values=_PADDED
)
def v1(k: Tensor, w: Tensor, eps: Tensor) -> Tensor:
    channels, length = w.shape
    return eps + F.conv1d(F.pad(k, (length - 1, 0)), w[:, None], groups=channels)


@operator.variant(
    "v2",
    idea="a product of Fourier transforms: T log T instead of T squared operations",
    unsupported=full_precision_only,
    no_special_values="a transform carries NaN to all outputs",
)
def v2(k: Tensor, w: Tensor, eps: Tensor) -> Tensor:
    length = k.shape[2]
    n = fast_length(2 * length - 1)
    product = torch.fft.rfft(k, n) * torch.fft.rfft(w.flip(-1), n)
    y: Tensor = torch.fft.irfft(product, n)
    return eps + y[..., :length]


def fast_length(least: int) -> int:
    """The smallest number from `least` on that has no prime factor beyond 5: a transform of that length is fast."""
    n = least
    while True:
        rest = n
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 1


@operator.variant(
    "v3",
    idea=(
        "the Toeplitz matrix stays in registers, one number per distance; C++: tiles of vectors; CUDA: tiles of "
        "32 rows by 256 time steps"
    ),
    outcome="v2's transform does fewer operations",
    native=True,
    unsupported=lambda case, device: "computes in f32: see the f32 case" if case.precision == "tf32" else None,
)
def v3(k: Tensor, w: Tensor, eps: Tensor) -> Tensor:
    return _native(k, w, eps, CUDA_CORES)


@operator.variant(
    "v4",
    idea=(
        "Toeplitz tiles on tensor cores in tf32: the fragments of 64 inputs hold 30 different numbers; the "
        "filter's gradient is summed along diagonals"
    ),
    native=True,
    devices=("cuda",),
    unsupported=lambda case, device: (
        None if case.precision == "tf32" else "its tensor cores round to tf32: see the tf32 case"
    ),
    no_special_values=_TRIANGLE,
)
def v4(k: Tensor, w: Tensor, eps: Tensor) -> Tensor:
    return _native(k, w, eps, TENSOR_CORES)


def f32_only(case: Case, _device: DeviceKind) -> str | None:
    return None if case.precision == "f32" else "it multiplies floats, with the accuracy of f32: see the f32 case"


@operator.variant(
    "v5",
    idea=(
        "v4's tiles with each float as a sum of two tf32 numbers, and no more batch rows in a tile than there are; the "
        "filter's gradient is v3's"
    ),
    native=True,
    devices=("cuda",),
    unsupported=f32_only,
    no_special_values=_TRIANGLE,
)
def v5(k: Tensor, w: Tensor, eps: Tensor) -> Tensor:
    return _native(k, w, eps, SPLIT_TENSOR_CORES)


def conv_compile_unsupported(case: Case, device: DeviceKind) -> str | None:
    return compile_unsupported(case, device) or empty_unsupported(case, device)


@operator.variant(
    "compile", idea="torch.compile of v1", unsupported=conv_compile_unsupported, no_special_values=_PADDED
)
def compiled_v1(k: Tensor, w: Tensor, eps: Tensor) -> Tensor:
    return _compiled()(k, w, eps)


def conv_triton_unsupported(case: Case, device: DeviceKind) -> str | None:
    return "tl.dot has no f64" if case.precision == "f64" else triton_unsupported(case, device)


@operator.variant(
    "triton",
    idea="tiles of the Toeplitz matrix gathered from w, then tl.dot",
    outcome="the filter's gradient uses no tensor cores",
    unsupported=conv_triton_unsupported,
    no_special_values=_TRIANGLE,
)
def triton_conv(k: Tensor, w: Tensor, eps: Tensor) -> Tensor:
    y: Tensor = TritonConv.apply(k, w, eps)  # type: ignore[no-untyped-call]
    return y


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v1)


def _native(k: Tensor, w: Tensor, eps: Tensor, version: int) -> Tensor:
    y: Tensor = torch.ops.warpwatch.causal_conv(k, w, eps, version)
    return y


try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def convolve_kernel(  # type: ignore[no-untyped-def]
        k,
        w,
        eps,
        y,
        batch,
        channels,
        length,
        turned: tl.constexpr,
        precision: tl.constexpr,
        rows: tl.constexpr,
        times: tl.constexpr,
        steps: tl.constexpr,
    ):
        c, t0 = tl.program_id(0).to(tl.int64), tl.program_id(1) * times
        b = tl.program_id(2) * rows + tl.arange(0, rows)
        t = t0 + tl.arange(0, times)
        row = (b.to(tl.int64) * channels + c) * length
        total = tl.zeros((rows, times), tl.float32)
        for u0 in range(0, tl.minimum(t0 + times, length), steps):
            u = u0 + tl.arange(0, steps)
            from_u = length - 1 - u if turned else u
            inside = (b < batch)[:, None] & (u < length)[None, :]
            taken = tl.load(k + row[:, None] + from_u[None, :], inside, 0.0)
            distance = t[None, :] - u[:, None]
            matrix = tl.load(w + c * length + length - 1 - distance, (distance >= 0) & (distance < length), 0.0)
            total += tl.dot(taken, matrix, input_precision=precision)
        if not turned:
            total += tl.load(eps)
        to = length - 1 - t if turned else t
        tl.store(y + row[:, None] + to[None, :], total, (b < batch)[:, None] & (t < length)[None, :])

    @triton.jit  # type: ignore[untyped-decorator]
    def correlate_kernel(  # type: ignore[no-untyped-def]
        k, g, dw, batch, channels, length, distances: tl.constexpr, steps: tl.constexpr
    ):
        c, d0 = tl.program_id(0).to(tl.int64), tl.program_id(1) * distances
        d = d0 + tl.arange(0, distances)
        total = tl.zeros((distances, steps), tl.float32)
        for b in range(batch):
            row = (b * channels + c) * length
            for u0 in range(0, length - d0, steps):
                u = u0 + tl.arange(0, steps)
                t = d[:, None] + u[None, :]
                late = tl.load(g + row + t, t < length, 0.0)
                early = tl.load(k + row + u, u < length, 0.0)[None, :]
                total += tl.where(t < length, late * early, 0.0)
        tl.store(dw + c * length + length - 1 - d, tl.sum(total, 1), d < length)


class TritonConv(torch.autograd.Function):
    """The Triton kernels: k's gradient is the same convolution with time reversed."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, w: Tensor, eps: Tensor) -> Tensor:
        ctx.save_for_backward(k, w)
        # The case's precision as torch has it now; backward runs when it may be another.
        ctx.precision = "tf32" if torch.get_float32_matmul_precision() == "high" else "ieee"
        return _triton_convolve(k, w, eps, False, ctx.precision)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, w = ctx.saved_tensors
        g, k, dw = gradients[0].contiguous(), k.contiguous(), torch.empty_like(w, memory_format=torch.contiguous_format)
        channels, length = w.shape
        if g.numel():
            correlate_kernel[(channels, triton.cdiv(length, 64))](k, g, dw, k.shape[0], channels, length, 64, 32)
        return _triton_convolve(g, w, g, True, ctx.precision), dw, g.sum()


def _triton_convolve(k: Tensor, w: Tensor, eps: Tensor, turned: bool, precision: str) -> Tensor:
    k, w = k.contiguous(), w.contiguous()
    y = torch.empty_like(k)
    batch, channels, length = k.shape
    if y.numel():
        grid = channels, triton.cdiv(length, 64), triton.cdiv(batch, 32)
        convolve_kernel[grid](k, w, eps, y, batch, channels, length, turned, precision, 32, 64, 32)
    return y
