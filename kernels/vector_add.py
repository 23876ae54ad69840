"""y = a + b: three memory accesses and one addition per element, so all time above that of a copy is due to the launch
shape.

Cases sized `host` instead of `n` are end to end: a, b and y lie on the host, the addition happens on the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, case
from warpwatch.peers import compile_unsupported, triton_unsupported

from ._compiled import compiled
from ._gradients import once_differentiable

THREADS, BLOCKS, ONE_BLOCK, VECTORS = range(4)
"""Launch shapes of the native operator, numbered as in csrc/vector_add/vector_add.h."""

LARGEST_SLOW_LAUNCH = 2**24
PARTS, STREAMS = 8, 3


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    n = length(case)
    if case.precision == "i32":
        return {"a": make.integers(-1000, 1000, n), "b": make.integers(-1000, 1000, n)}
    a, b = make.normal(n), make.normal(n)
    return {"a": a.cpu(), "b": b.cpu(), "device": a.device} if on_host(case) else {"a": a, "b": b}


def case_of(a: Tensor, b: Tensor, device: torch.device | None = None, **_prepared: Any) -> Case:
    return case(n=a.shape[0]) if device is None else case(host=a.shape[0])


def on_host(case: Case) -> bool:
    return case.sizes[0][0] == "host"


def length(case: Case) -> int:
    return int(case["host" if on_host(case) else "n"])


def reference(a: Tensor, b: Tensor, device: torch.device | None = None) -> Tensor:
    return a + b


def cost(case: Case) -> Cost:
    """Forward reads a and b and writes y. Backward returns the incoming gradient: no bytes move.

    End to end, a, b and y also cross the device's memory once more.
    """
    n = length(case)
    if on_host(case):
        return Cost(n, 6 * n * case.element_bytes)
    return Cost(n, 3 * n * case.element_bytes) if case.direction == "fwd" else Cost(0, 0)


def register_native() -> None:
    """Shapes for torch.compile and the gradient, dy/da = dy/db = 1, for the torch operator that the library defines."""

    @torch.library.register_fake("warpwatch::vector_add")  # type: ignore[untyped-decorator]
    def fake(a: Tensor, b: Tensor, launch: int = THREADS) -> Tensor:
        return a.new_empty(a.shape)

    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, gradient, None

    torch.library.register_autograd("warpwatch::vector_add", backward)


QUICK = (
    case("f32", n=2**16),
    case("f32", n=1_000_003),
    case("f32", "bwd", n=1_000_003),
    case("i32", n=2**16),
    case("f32", host=2**16),
)
FULL = (
    *QUICK,
    case("f32", n=512),
    case("f32", "bwd", n=512),
    *(case("f32", n=2**power) for power in (18, 20, 22, 24, 26, 28)),
    case("f32", n=2**24 + 1),
    case("f64", n=2**24),
    case("i32", n=2**20 + 1),
    case("i32", n=2**24),
    *(case("f32", host=2**power) for power in (20, 22, 24)),
)
EDGE = (
    *(case("f32", n=n) for n in (0, 1, 255, 257, 1025)),
    case("f32", "bwd", n=1),
    case("i32", n=3),
    case("f32", host=1),
    case("f32", host=1025),
)

operator = Operator(
    "vector_add",
    "y = a + b over vectors.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("a", "b"),
    native=register_native,
)


Reason = Callable[[Case, DeviceKind], str | None]


def device_only(*others: Reason) -> Reason:
    """For variants whose operands and result are on the device."""

    def unsupported(case: Case, device: DeviceKind) -> str | None:
        if on_host(case):
            return "its operands lie on the device: pageable, pinned and streams take them from the host"
        return next((why for reason in others if (why := reason(case, device))), None)

    return unsupported


def host_only(case: Case, device: DeviceKind) -> str | None:
    return None if on_host(case) else "it takes its operands from the host: see the cases sized `host`"


@operator.variant(
    "v1",
    idea="copy a, then add b in place: the way that reads naturally when y is prepared first",
    outcome="five memory accesses per element where three do",
    unsupported=device_only(),
)
def v1(a: Tensor, b: Tensor) -> Tensor:
    y = a.clone()
    y += b
    return y


@operator.variant("v2", idea="one torch call", unsupported=device_only())
def v2(a: Tensor, b: Tensor) -> Tensor:
    return torch.add(a, b)


@operator.variant(
    "v3",
    idea="C++ loop over torch's threads on the CPU; <<<N/256, 256>>>, one element per thread, on CUDA",
    outcome="one element per thread keeps too few bytes in flight",
    native=True,
    unsupported=device_only(),
)
def v3(a: Tensor, b: Tensor) -> Tensor:
    return _native(a, b, THREADS)


@operator.variant(
    "v4",
    idea="16 bytes per access, a fixed grid that strides",
    outcome="memory bandwidth is the limit",
    native=True,
    devices=("cuda",),
    unsupported=device_only(),
)
def v4(a: Tensor, b: Tensor) -> Tensor:
    return _native(a, b, VECTORS)


def slow_launch(case: Case, device: DeviceKind) -> str | None:
    """A launch shape that leaves most of the GPU idle takes seconds at larger sizes and shows nothing new there."""
    return f"measured up to n={LARGEST_SLOW_LAUNCH} only" if case["n"] > LARGEST_SLOW_LAUNCH else None


@operator.variant(
    "v5",
    idea="<<<N, 1>>>, one thread per block: 31 of 32 lanes idle",
    native=True,
    devices=("cuda",),
    unsupported=device_only(slow_launch),
)
def v5(a: Tensor, b: Tensor) -> Tensor:
    return _native(a, b, BLOCKS)


@operator.variant(
    "v6",
    idea="<<<1, 1024>>>, one block: one multiprocessor works",
    native=True,
    devices=("cuda",),
    unsupported=device_only(slow_launch),
)
def v6(a: Tensor, b: Tensor) -> Tensor:
    return _native(a, b, ONE_BLOCK)


@operator.variant("compile", idea="torch.compile of the reference", unsupported=device_only(compile_unsupported))
def compiled_add(a: Tensor, b: Tensor) -> Tensor:
    return _compiled()(a, b)


@operator.variant(
    "triton",
    idea="one program per 1024 elements",
    outcome="memory bandwidth is the limit",
    unsupported=device_only(triton_unsupported),
)
def triton_add(a: Tensor, b: Tensor) -> Tensor:
    y: Tensor = TritonAdd.apply(a, b)  # type: ignore[no-untyped-call]
    return y


@operator.variant(
    "pageable",
    idea="end to end from ordinary memory, which the driver copies through a buffer of its own",
    unsupported=host_only,
)
def pageable(a: Tensor, b: Tensor, device: torch.device) -> Tensor:
    return (a.to(device) + b.to(device)).cpu()


def pin(a: Tensor, b: Tensor, device: torch.device) -> dict[str, Any]:
    """The operands in page-locked memory.

    A call allocates its result's memory itself, because the result may outlive it; torch caches the memory.
    """
    return {"a_pinned": a.contiguous().pin_memory(), "b_pinned": b.contiguous().pin_memory()}


@operator.variant(
    "pinned",
    idea="end to end from page-locked memory, which the device reads by itself",
    devices=("cuda",),
    unsupported=host_only,
    prepare=pin,
)
def pinned(a: Tensor, b: Tensor, device: torch.device, a_pinned: Tensor, b_pinned: Tensor) -> Tensor:
    y = torch.empty(a.shape, dtype=a.dtype, pin_memory=True)
    y.copy_(a_pinned.to(device, non_blocking=True) + b_pinned.to(device, non_blocking=True), non_blocking=True)
    torch.cuda.current_stream(device).synchronize()
    return y


@operator.variant(
    "streams",
    idea=(
        "pinned in eight parts on three streams: one part is added while the next is copied in and the one "
        "before is copied out"
    ),
    devices=("cuda",),
    unsupported=host_only,
    prepare=pin,
)
def streams(a: Tensor, b: Tensor, device: torch.device, a_pinned: Tensor, b_pinned: Tensor) -> Tensor:
    y = torch.empty(a.shape, dtype=a.dtype, pin_memory=True)
    for i, (left, right, total) in enumerate(zip(*(t.chunk(PARTS) for t in (a_pinned, b_pinned, y)), strict=True)):
        # Operands and result lie on the host, so no part waits for anything but its own stream.
        with torch.cuda.stream(_streams(device)[i % STREAMS]):
            total.copy_(left.to(device, non_blocking=True) + right.to(device, non_blocking=True), non_blocking=True)
    for stream in _streams(device):
        stream.synchronize()
    return y


@functools.cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(STREAMS)]  # type: ignore[no-untyped-call]


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(reference)


def _native(a: Tensor, b: Tensor, launch: int) -> Tensor:
    y: Tensor = torch.ops.warpwatch.vector_add(a, b, launch)
    return y


try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def add_kernel(a, b, y, n, block: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        inside = i < n
        tl.store(y + i, tl.load(a + i, inside) + tl.load(b + i, inside), inside)


class TritonAdd(torch.autograd.Function):
    """The Triton kernel with its gradient."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        a, b = a.contiguous(), b.contiguous()
        y = torch.empty_like(a)
        add_kernel[(triton.cdiv(y.numel(), 1024),)](a, b, y, y.numel(), 1024)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], gradients[0]
