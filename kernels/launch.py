"""The costs below every kernel: an empty launch, one addition, copies between and inside memories, waiting for the
device.

The operation is the name of a case's size: `empty`, `add` (y = x + 1), `h2d` (host to device), `d2h`, `d2d` and `sync`,
over so many elements. The result of `d2h` lies on the host; `empty` and `sync` return their input, and so do `malloc`
and `pin`, which allocate memory of that many elements on the device or with locked pages on the host, and free it.

`add_from_host` is the whole program that teaches CUDA: two int32 vectors on the host, memory for three on the device,
two copies there, a kernel that adds them, a copy back, the memory freed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, case

COPIES = ("h2d", "d2h", "d2d")
OWN, MEMCPY = range(2)
"""Ways of the native copy, numbered as in csrc/launch/launch.cpp."""
DEVICE, POOL, PINNED = range(3)
"""Kinds of memory that the native operators allocate, numbered as in csrc/launch/launch.h."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    way, n = way_of(case)
    if way == "add_from_host":
        a, b, place = make.integers(-1000, 1000, n), make.integers(-1000, 1000, n), make.integers(0, 1, 1)
        return {"x": a.cpu(), "b": b.cpu(), "way": way, "device": place.device, "place": place}
    x = make.normal(n)
    return {"x": x.cpu() if way == "h2d" else x, "way": way, "device": x.device}


def case_of(x: Tensor, way: str, **_others: Any) -> Case:
    return Case(((way, x.numel()),))


def way_of(case: Case) -> tuple[str, int]:
    """(the operation, number of elements)."""
    ((way, n),) = case.sizes
    assert isinstance(n, int)
    return way, n


def reference(
    x: Tensor, way: str, device: torch.device, b: Tensor | None = None, place: Tensor | None = None
) -> Tensor:
    if b is not None:
        return x + b
    if way == "add":
        return x + 1
    if way in COPIES:
        return x.to({"h2d": device, "d2h": torch.device("cpu"), "d2d": x.device}[way], copy=True)
    return x


def cost(case: Case) -> Cost:
    """A copy inside one memory reads and writes it; a copy between memories accesses the device's once.

    `add_from_host` makes three such copies, and its kernel reads two vectors and writes one.
    """
    way, n = way_of(case)
    touched = {"h2d": 1, "d2h": 1, "add": 2, "d2d": 2, "add_from_host": 6}.get(way, 0)
    return Cost(n if way in ("add", "add_from_host") else 0, touched * n * case.element_bytes)


def register_native() -> None:
    """Shapes for torch.compile, for the torch operators that the library defines."""
    torch.library.register_fake("warpwatch::launch_empty", lambda x: None)
    torch.library.register_fake("warpwatch::launch_add", lambda x: x.new_empty(x.shape))
    torch.library.register_fake("warpwatch::launch_copy", lambda x, way: x.new_empty(x.shape))
    torch.library.register_fake("warpwatch::launch_allocate", lambda x, size, memory: None)
    torch.library.register_fake("warpwatch::launch_add_from_host", lambda a, b, place, memory: a.new_empty(a.shape))


def only(*ways: str, why: str) -> Any:
    """For variants that differ from the others in these operations only."""

    def unsupported(case: Case, device: DeviceKind) -> str | None:
        way, _ = way_of(case)
        if device == "cpu" and way in ("h2d", "d2h", "sync", "pin"):
            return "a CPU has one memory, and nothing to wait for"
        return None if way in ways else why

    return unsupported


QUICK = (
    case(empty=1),
    case(add=1),
    case(sync=1),
    *(case(d2d=n) for n in (2**16, 1_000_003)),
    case(h2d=2**16),
    case(d2h=2**16),
    case(malloc=2**16),
    case(pin=2**16),
    case("i32", add_from_host=2**16),
)
LARGE = (2**20, 2**24, 2**26)
FULL = (
    *QUICK,
    *(case(h2d=n) for n in (1, *LARGE)),
    *(case(d2h=n) for n in (1, *LARGE)),
    *(case(d2d=n) for n in (1, *LARGE)),
    *(case(malloc=n) for n in (1, *LARGE)),
    *(case(pin=n) for n in (1, *LARGE)),
    *(case("i32", add_from_host=n) for n in (512, *LARGE)),
)
EDGE = (
    *(case(d2d=n) for n in (0, 1, 3, 1023, 4099)),
    case(add=257),
    case(h2d=0),
    case(h2d=1023),
    case(d2h=0),
    case(d2h=1023),
    case(malloc=0),
    *(case("i32", add_from_host=n) for n in (0, 1, 4099)),
)

operator = Operator(
    "launch",
    "What a launch, a copy and a wait cost.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    native=register_native,
)


@operator.variant(
    "v1",
    idea=(
        "torch's defaults: a kernel that sleeps for no time, x + 1, copies of pageable memory, a wait for the "
        "whole device, memory that its allocators keep for the next call"
    ),
    unsupported=only("empty", "add", "sync", "malloc", "pin", "add_from_host", *COPIES, why=""),
)
def v1(x: Tensor, way: str, device: torch.device, b: Tensor | None = None, place: Tensor | None = None) -> Tensor:
    if b is not None:
        return (x.to(device) + b.to(device)).cpu()
    if way in ("malloc", "pin"):
        torch.empty_like(x, device=device if way == "malloc" else "cpu", pin_memory=way == "pin")
    if way == "empty" and device.type == "cuda":
        torch.cuda._sleep(0)  # type: ignore[no-untyped-call]
    if way == "sync":
        torch.cuda.synchronize(device)
    return reference(x, way, device)


def pin(x: Tensor, way: str, device: torch.device) -> dict[str, Any]:
    """The host's operand of a copy to the device in page-locked memory, which the device reads directly."""
    return {"x_pinned": x.contiguous().pin_memory()} if way == "h2d" else {"x_pinned": x}


def pin_both(
    x: Tensor, way: str, device: torch.device, b: Tensor | None = None, place: Tensor | None = None
) -> dict[str, Any]:
    """Both operands of the program in page-locked memory, where the device has a memory of its own."""
    if b is None or device.type == "cpu":
        return {}
    return {"x_pinned": x.contiguous().pin_memory(), "b_pinned": b.contiguous().pin_memory()}


@operator.variant(
    "v2",
    idea="copies between the device and page-locked memory; a wait for the current stream alone",
    devices=("cuda",),
    unsupported=only("h2d", "d2h", "sync", why="no memory of the host is part of it: see v1"),
    prepare=pin,
)
def v2(x: Tensor, way: str, device: torch.device, x_pinned: Tensor) -> Tensor:
    if way == "h2d":
        return x_pinned.to(device, non_blocking=True)
    y = x
    if way == "d2h":
        # Torch keeps page-locked memory for the next call, as it does the device's.
        y = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        y.copy_(x, non_blocking=True)
    torch.cuda.current_stream(device).synchronize()
    return y


@operator.variant(
    "v3",
    idea=(
        "our empty kernel, addition and copy of 16 bytes per access; cudaMalloc, cudaHostAlloc and their frees; the "
        "program with a wait after every copy; on the CPU an empty call, a copy by all threads and the C library's "
        "malloc"
    ),
    native=True,
    unsupported=only(
        "empty",
        "add",
        "d2d",
        "malloc",
        "pin",
        "add_from_host",
        why="torch's copies and waits are the runtime's own: see v1 and v2",
    ),
)
def v3(x: Tensor, way: str, device: torch.device, b: Tensor | None = None, place: Tensor | None = None) -> Tensor:
    if b is not None:
        total: Tensor = torch.ops.warpwatch.launch_add_from_host(x, b, place, DEVICE)
        return total
    if way in ("malloc", "pin"):
        memory = PINNED if way == "pin" else DEVICE
        torch.ops.warpwatch.launch_allocate(x, x.numel() * x.element_size(), memory)
        return x
    if way == "empty":
        torch.ops.warpwatch.launch_empty(x)
        return x
    y: Tensor = torch.ops.warpwatch.launch_add(x) if way == "add" else torch.ops.warpwatch.launch_copy(x, OWN)
    return y


def pooled_only(case: Case, device: DeviceKind) -> str | None:
    """A CPU has no stream, in whose order memory could be allocated, and so no second way of the program."""
    way, _ = way_of(case)
    if way == "d2d" or (device == "cuda" and way in ("malloc", "add_from_host")):
        return None
    return "it copies inside one memory, and allocates from a stream's pool"


@operator.variant(
    "v4",
    idea=(
        "cudaMemcpyAsync, or memcpy on one CPU thread; cudaMallocAsync from the stream's pool; the program with it, "
        "with operands in page-locked memory and one wait at the end"
    ),
    outcome="memory bandwidth is the limit",
    native=True,
    unsupported=pooled_only,
    prepare=pin_both,
)
def v4(
    x: Tensor,
    way: str,
    device: torch.device,
    b: Tensor | None = None,
    place: Tensor | None = None,
    x_pinned: Tensor | None = None,
    b_pinned: Tensor | None = None,
) -> Tensor:
    if way == "add_from_host":
        total: Tensor = torch.ops.warpwatch.launch_add_from_host(x_pinned, b_pinned, place, POOL)
        return total
    if way == "malloc":
        torch.ops.warpwatch.launch_allocate(x, x.numel() * x.element_size(), POOL)
        return x
    y: Tensor = torch.ops.warpwatch.launch_copy(x, MEMCPY)
    return y


@operator.variant(
    "event",
    idea="a wait for an event",
    devices=("cuda",),
    unsupported=only("sync", why="it waits, and does nothing else"),
)
def event(x: Tensor, way: str, device: torch.device) -> Tensor:
    mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
    mark.record()
    mark.synchronize()
    return x
