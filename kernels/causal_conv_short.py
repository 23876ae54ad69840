"""A short causal convolution per channel, as state-space models have before their scan: y = f(b + sum over j of w[j]
x[t - (W - 1) + j]).

x is (batch, channels, length), w is (channels, width) with two to four taps; the bias is optional, and f is the
identity or SiLU.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported, triton_unsupported

from ._compiled import compiled
from ._gradients import once_differentiable


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    channels, width = case["channels"], case["width"]
    return {
        "x": make.normal(case["batch"], channels, case["length"]),
        "w": make.normal(channels, width, scale=width**-0.5),
        "bias": make.normal(channels) if case["bias"] else None,
        "silu": bool(case["silu"]),
    }


def case_of(x: Tensor, w: Tensor, bias: Tensor | None = None, silu: bool = False, **_prepared: Any) -> Case:
    batch, channels, length = x.shape
    return case(
        batch=batch, channels=channels, length=length, width=w.shape[1], bias=int(bias is not None), silu=int(silu)
    )


def reference(x: Tensor, w: Tensor, bias: Tensor | None = None, silu: bool = False) -> Tensor:
    width, length = w.shape[1], x.shape[2]
    padded = F.pad(x, (width - 1, 0))
    z = torch.zeros_like(x) if bias is None else bias[:, None].expand_as(x)
    for j in range(width):
        z = z + w[:, j, None] * padded[..., j : j + length]
    return z * torch.sigmoid(z) if silu else z


def cost(case: Case) -> Cost:
    """The sum, and four operations of SiLU.

    Backward needs the sum again where SiLU does, eight operations of its derivative, the mirrored sum, and a product
    and a sum per tap; x, the gradients of y and x, and the small operands twice.
    """
    elements, width, bias = case["batch"] * case["channels"] * case["length"], case["width"], case["bias"]
    small = case["channels"] * (width + bias)
    total = 2 * width - 1 + bias
    if case.direction == "fwd":
        return Cost(elements * (total + 4 * case["silu"]), case.element_bytes * (2 * elements + small))
    flops = elements * (case["silu"] * (total + 8) + 2 * width - 1 + 2 * width + bias)
    return Cost(flops, case.element_bytes * (3 * elements + 2 * small))


def depth(case: Case) -> int:
    taps: int = case["width"] + 1
    return taps if case.direction == "fwd" else max(taps, case["batch"] * case["length"])


def register_native() -> None:
    """Shapes for torch.compile, and the gradients, for the torch operators that the library defines."""

    @torch.library.register_fake("warpwatch::causal_conv_short")  # type: ignore[untyped-decorator]
    def fake(x: Tensor, w: Tensor, bias: Tensor | None = None, silu: bool = False) -> Tensor:
        return x.new_empty(x.shape)

    @torch.library.register_fake("warpwatch::causal_conv_short_backward")  # type: ignore[untyped-decorator]
    def fake_backward(
        gradient: Tensor, x: Tensor, w: Tensor, bias: Tensor | None = None, silu: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        return x.new_empty(x.shape), w.new_empty(w.shape), w.new_empty(0 if bias is None else w.shape[0])

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias, ctx.silu = inputs
        ctx.save_for_backward(x, w, bias)

    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, w, bias = ctx.saved_tensors
        dx, dw, dbias = torch.ops.warpwatch.causal_conv_short_backward(gradient, x, w, bias, ctx.silu)
        return dx, dw, None if bias is None else dbias, None

    torch.library.register_autograd("warpwatch::causal_conv_short", backward, setup_context=remember)


QUICK = both_directions(
    case("f32", batch=2, channels=32, length=128, width=4, bias=1, silu=1),
    case("f32", batch=1, channels=33, length=101, width=3, bias=0, silu=0),
    case("bf16", batch=2, channels=16, length=256, width=4, bias=1, silu=1),
    case("f16", batch=1, channels=8, length=64, width=2, bias=0, silu=1),
)
FULL = (
    *QUICK,
    *both_directions(
        *(case("bf16", batch=4, channels=4096, length=2048, width=width, bias=1, silu=1) for width in (2, 3, 4)),
        case("bf16", batch=4, channels=4096, length=2048, width=4, bias=0, silu=0),
        case("bf16", batch=1, channels=2048, length=32768, width=4, bias=1, silu=1),
        case("bf16", batch=8, channels=1536, length=511, width=4, bias=1, silu=1),
        case("f16", batch=4, channels=4096, length=2048, width=4, bias=1, silu=1),
        case("f32", batch=4, channels=4096, length=2048, width=4, bias=1, silu=1),
        case("f64", batch=2, channels=1024, length=2048, width=4, bias=1, silu=1),
    ),
)
EDGE = (
    *both_directions(
        case("f32", batch=1, channels=1, length=1, width=4, bias=1, silu=1),
        case("bf16", batch=3, channels=5, length=17, width=2, bias=1, silu=0),
        case("f32", batch=2, channels=3, length=1028, width=3, bias=1, silu=1),
    ),
    case("f64", "bwd", batch=2, channels=3, length=7, width=4, bias=1, silu=1),
    case("f16", batch=1, channels=2, length=2056, width=4, bias=0, silu=0),
    case("f32", batch=2, channels=3, length=0, width=2, bias=1, silu=1),
)

operator = Operator(
    "causal_conv_short",
    "Causal convolution of two to four taps per channel, with bias and SiLU.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("x", "w", "bias"),
    depth=depth,
    native=register_native,
)


def empty_unsupported(case: Case, _device: DeviceKind) -> str | None:
    return None if case["length"] else "conv1d takes no empty row"


@operator.variant("v1", idea="pad, conv1d with a group per channel, then SiLU", unsupported=empty_unsupported)
def v1(x: Tensor, w: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    z = F.conv1d(F.pad(x, (w.shape[1] - 1, 0)), w[:, None], bias, groups=w.shape[0])
    return F.silu(z) if silu else z


@operator.variant("v2", idea="one shifted product and sum per tap instead of a library's convolution")
def v2(x: Tensor, w: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    width, length = w.shape[1], x.shape[2]
    padded = F.pad(x, (width - 1, 0))
    taps = w[:, :, None].unbind(1)
    z = padded[..., :length] * taps[0] if bias is None else torch.addcmul(bias[:, None], padded[..., :length], taps[0])
    for j in range(1, width):
        z = torch.addcmul(z, padded[..., j : j + length], taps[j])
    return F.silu(z) if silu else z


@operator.variant(
    "v3",
    idea=(
        "one pass over memory, with SiLU and its derivative; C++: rows over threads; CUDA: 16 bytes per thread, "
        "all gradients in one pass"
    ),
    outcome="it reads and writes each element once, and memory bandwidth is the limit",
    native=True,
)
def v3(x: Tensor, w: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    y: Tensor = torch.ops.warpwatch.causal_conv_short(x, w, bias, silu)
    return y


@operator.variant("compile", idea="torch.compile of v2", unsupported=compile_unsupported)
def compiled_v2(x: Tensor, w: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    return _compiled()(x, w, bias, silu)


@operator.variant(
    "triton",
    idea="one program per 1024 elements of a row, a masked load per tap",
    unsupported=triton_unsupported,
)
def triton_conv(x: Tensor, w: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    y: Tensor = TritonShortConv.apply(x, w, bias, silu)  # type: ignore[no-untyped-call]
    return y


def causal_conv1d_unsupported(case: Case, _device: DeviceKind) -> str | None:
    if case.precision == "f64":
        return "causal_conv1d has no f64"
    installed = importlib.util.find_spec("causal_conv1d") is not None
    return None if installed else "causal_conv1d is not installed: pip install causal-conv1d"


@operator.variant(
    "causal_conv1d", idea="the kernels that Mamba ships", devices=("cuda",), unsupported=causal_conv1d_unsupported
)
def causal_conv1d(x: Tensor, w: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    from causal_conv1d import causal_conv1d_fn

    y: Tensor = causal_conv1d_fn(x, w, bias, activation="silu" if silu else None)
    return y


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v2)


try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def filtered(x, w, bias, row, channel, t, length, width: tl.constexpr, wide: tl.constexpr):  # type: ignore[no-untyped-def]
        z = tl.zeros(t.shape, wide)
        if bias is not None:
            z += tl.load(bias + channel).to(wide)
        for j in tl.static_range(width):
            at = t - (width - 1) + j
            z += tl.load(w + channel * width + j).to(wide) * tl.load(
                x + row * length + at, (at >= 0) & (at < length), 0.0
            ).to(wide)
        return z

    @triton.jit  # type: ignore[untyped-decorator]
    def slope(g, x, w, bias, row, channel, t, length, silu: tl.constexpr, width: tl.constexpr, wide: tl.constexpr):  # type: ignore[no-untyped-def]
        dz = tl.load(g + row * length + t, t < length, 0.0).to(wide)
        if silu:
            z = filtered(x, w, bias, row, channel, t, length, width, wide)
            s = 1.0 / (1.0 + tl.exp(-z))
            dz *= s * (1.0 + z * (1.0 - s))
        return dz

    @triton.jit  # type: ignore[untyped-decorator]
    def forward_kernel(  # type: ignore[no-untyped-def]
        x,
        w,
        bias,
        y,
        channels,
        length,
        silu: tl.constexpr,
        width: tl.constexpr,
        wide: tl.constexpr,
        block: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        t = tl.program_id(1) * block + tl.arange(0, block)
        z = filtered(x, w, bias, row, row % channels, t, length, width, wide)
        if silu:
            z = z / (1.0 + tl.exp(-z))
        tl.store(y + row * length + t, z, t < length)

    @triton.jit  # type: ignore[untyped-decorator]
    def backward_kernel(  # type: ignore[no-untyped-def]
        g,
        x,
        w,
        bias,
        dx,
        shares,
        channels,
        length,
        silu: tl.constexpr,
        width: tl.constexpr,
        wide: tl.constexpr,
        block: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        channel = row % channels
        t = tl.program_id(1) * block + tl.arange(0, block)
        gradient = slope(g, x, w, bias, row, channel, t, length, silu, width, wide)
        share = shares + (row * tl.num_programs(1) + tl.program_id(1)) * (width + 1)
        tl.store(share + width, tl.sum(gradient, 0))
        total = tl.zeros((block,), wide)
        for j in tl.static_range(width):
            at = t - (width - 1) + j
            tl.store(
                share + j, tl.sum(gradient * tl.load(x + row * length + at, (at >= 0) & (at < length), 0.0).to(wide), 0)
            )
            later = slope(g, x, w, bias, row, channel, t + (width - 1) - j, length, silu, width, wide)
            total += tl.load(w + channel * width + j).to(wide) * later
        tl.store(dx + row * length + t, total, t < length)


class TritonShortConv(torch.autograd.Function):
    """The Triton kernels; torch sums the programs' partial gradients of taps and bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
        ctx.save_for_backward(x, w, bias)
        ctx.silu = silu
        x, w, bias = x.contiguous(), w.contiguous(), None if bias is None else bias.contiguous()
        y = torch.empty_like(x)
        if y.numel():
            forward_kernel[_grid(x)](x, w, bias, y, x.shape[1], x.shape[2], silu, w.shape[1], _wide(x), _BLOCK)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, w, bias = ctx.saved_tensors
        x, w, bias = x.contiguous(), w.contiguous(), None if bias is None else bias.contiguous()
        g, dx, width = gradients[0].contiguous(), torch.empty_like(x), w.shape[1]
        grid = _grid(x)
        shares = torch.zeros(
            x.shape[0],
            x.shape[1],
            grid[1],
            width + 1,
            dtype=torch.promote_types(x.dtype, torch.float32),
            device=x.device,
        )
        if x.numel():
            backward_kernel[grid](g, x, w, bias, dx, shares, x.shape[1], x.shape[2], ctx.silu, width, _wide(x), _BLOCK)
        total = shares.sum((0, 2)).to(w.dtype)
        return dx, total[:, :width], None if bias is None else total[:, width], None


_BLOCK = 1024


def _grid(x: Tensor) -> tuple[int, int]:
    return x.shape[0] * x.shape[1], triton.cdiv(x.shape[2], _BLOCK)


def _wide(x: Tensor) -> Any:
    return tl.float64 if x.dtype == torch.float64 else tl.float32
