"""Surrounds tensors with bands of known bytes, so that out-of-bounds reads and writes of a kernel show.

Inputs lie in larger buffers, of which no byte may change. Memory that the variant allocates through torch comes from a
dispatch mode, which pads each allocation and fills it with NaN (integers: 77 in every byte), so that an element never
written is not mistaken for a result.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from warpwatch.contract.words import Fault

from ..dispatch import DispatchMode
from ..failures import WrongResultError
from ..problem import CaseData, as_bytes, has_overlap

BAND = 64 * 1024
"""Bytes on either side: a tile of 128 × 128 floats that overruns ends inside, and torch's alignment is kept."""
_AROUND_INPUTS = 0xFF
"""NaN in every floating-point format, so that a result computed from an element outside its input is not finite."""
_AROUND_OUTPUTS = 0x5A
"""A different byte, so that a copy of an input's band into an output's band shows."""
_POISON = 77
_EMPTY = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided")
_FILLED = ("aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::clone")
_NAMESPACES = ("aten", "prim", "prims", "profiler", "c10d")

Layout = Callable[[Tensor], tuple[tuple[int, ...], int] | None]
"""The strides that a tensor gets, and how many elements to skip at the front; None leaves the tensor as it is."""


def aligned(tensor: Tensor) -> tuple[tuple[int, ...], int]:
    """The tensor's own strides, at the front of an allocation."""
    return tuple(tensor.stride()), 0


def offset(tensor: Tensor) -> tuple[tuple[int, ...], int]:
    """The tensor's own strides, one element further: contiguous, but only aligned to one element."""
    return tuple(tensor.stride()), 1


def strided(tensor: Tensor) -> tuple[tuple[int, ...], int] | None:
    """Every second element of a buffer; None for a tensor that is not contiguous or has fewer than two elements."""
    if not tensor.is_contiguous() or tensor.numel() < 2:
        return None
    return tuple(2 * stride for stride in tensor.stride()), 0


@dataclass(frozen=True, slots=True)
class Banded:
    """A tensor in a buffer of bytes; `end` is the first byte after the tensor's memory."""

    buffer: Tensor
    tensor: Tensor
    end: int


class GuardedInputs:
    """`data` in a new layout, each tensor alone in a buffer of known bytes."""

    def __init__(self, data: CaseData, layout: Layout) -> None:
        self._placed: list[tuple[Banded, Tensor]] = []
        self.data = data.map(lambda tensor: self._place(tensor, layout))

    @property
    def placed(self) -> int:
        """The number of tensors that got a new layout."""
        return len(self._placed)

    def expect_intact(self) -> None:
        """Raises WrongResultError when any byte in or around a tensor changed."""
        for banded, before in self._placed:
            # 8-byte words compare several times faster than bytes.
            if not torch.equal(banded.buffer.view(torch.int64), before.view(torch.int64)):
                name = next(name for name, candidate in self.data.tensors() if candidate is banded.tensor)
                damage = _describe_damage(banded, banded.buffer != before)
                message = f"The variant writes into the memory of its input {name}: {damage}"
                raise WrongResultError(message, Fault.OUT_OF_BOUNDS)

    def _place(self, tensor: Tensor, layout: Layout) -> Tensor:
        # Sparse tensors, and those whose elements share memory, keep their layout.
        placement = layout(tensor) if tensor.layout is torch.strided and not has_overlap(tensor) else None
        if placement is None:
            return tensor.detach().clone(memory_format=torch.preserve_format)
        strides, skipped = placement
        banded = _banded(tensor, strides, skipped, _AROUND_INPUTS)
        as_bytes(banded.tensor).copy_(as_bytes(tensor.detach()))
        self._placed.append((banded, banded.buffer.clone()))
        return banded.tensor


class GuardedAllocations(DispatchMode):  # type: ignore[no-untyped-call]
    """While active, gives bands and poison to all memory allocated through torch's dispatcher, in native libraries too.

    calls: the operators outside torch that were called, each with the arguments of its first call.
    """

    def __init__(self) -> None:
        super().__init__()
        self._allocations: list[Banded] = []
        self.calls: dict[OpOverload[..., Any], tuple[tuple[Any, ...], dict[str, Any]]] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keeps compiled code compiled; otherwise torch.compile would fall back to eager code under this mode."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **named)
        if func.namespace not in _NAMESPACES:
            return self._call_library(func, args, named)
        result = func(*args, **named)
        if func._schema.name in (*_EMPTY, *_FILLED) and isinstance(result, Tensor) and result.layout is torch.strided:
            return result if result.is_meta else self._guard(result, func._schema.name in _EMPTY)
        return result

    def expect_intact(self) -> None:
        """Raises WrongResultError when a byte beside any allocation changed."""
        for banded in self._allocations:
            bands = banded.buffer[:BAND], banded.buffer[banded.end :]
            if not all(bool((band == _AROUND_OUTPUTS).all()) for band in bands):
                changed = banded.buffer != _AROUND_OUTPUTS
                changed[BAND : banded.end] = False
                damage = _describe_damage(banded, changed)
                message = f"The variant writes outside memory that it allocated: {damage}"
                raise WrongResultError(message, Fault.OUT_OF_BOUNDS)

    def owns(self, tensor: Tensor) -> bool:
        """Whether the tensor lies in guarded memory."""
        storage = tensor.untyped_storage().data_ptr()
        return any(banded.buffer.data_ptr() + BAND == storage for banded in self._allocations)

    def _call_library(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls an operator of a library with the mode on, so that its allocations are guarded too."""
        if func not in self.calls:
            # The call may change its arguments, so they are copied before.
            self.calls[func] = _copied(args), _copied(kwargs)
        device = next((a.device.type for a in args if isinstance(a, Tensor)), None)
        key = {"cpu": torch._C.DispatchKey.CPU, "cuda": torch._C.DispatchKey.CUDA}.get(device or "")
        if key is None:
            return func(*args, **kwargs)
        with self:
            return func.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)

    def _guard(self, fresh: Tensor, poison: bool) -> Tensor:
        banded = _banded(fresh, tuple(fresh.stride()), 0, _AROUND_OUTPUTS)
        view = banded.tensor
        if not poison:
            view.copy_(fresh)
        elif view.dtype.is_floating_point or view.dtype.is_complex:
            view.fill_(math.nan)
        else:
            banded.buffer[BAND : banded.end] = 1 if view.dtype == torch.bool else _POISON
        self._allocations.append(banded)
        return view


class _GuardedFromDynamo(GuardedAllocations):  # type: ignore[no-untyped-call]
    """The same beside compiled variants: torch.compile must not trace the guard."""

    __torch_dispatch__ = GuardedAllocations.__torch_dispatch__

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True


def guard_allocations() -> GuardedAllocations:
    """Guards for the variants of this process: torch._dynamo is there once one of them was compiled."""
    return _GuardedFromDynamo() if "torch._dynamo" in sys.modules else GuardedAllocations()


def _banded(like: Tensor, strides: tuple[int, ...], skipped: int, byte: int) -> Banded:
    """A tensor with the shape and dtype of `like` between two bands, in a buffer filled with `byte`.

    Its storage holds the tensor alone, because torch assumes that an allocation begins where its storage begins.
    """
    extent = 1 + sum((n - 1) * stride for n, stride in zip(like.shape, strides, strict=True)) if like.numel() else 0
    size = (skipped + extent) * like.element_size()
    # The size is a multiple of the 8-byte words that are compared.
    buffer = torch.full(((BAND + size + BAND + 7) // 8 * 8,), byte, dtype=torch.uint8, device=like.device)
    storage = torch._C._construct_storage_from_data_pointer(buffer.data_ptr() + BAND, like.device, size)
    # The tensor keeps its buffer alive.
    storage.buffer = buffer  # type: ignore[attr-defined]
    tensor = torch.empty(0, dtype=like.dtype, device=like.device)
    tensor.set_(storage, skipped if extent else 0, like.shape, strides)
    return Banded(buffer, tensor, BAND + size)


def _copied(values: Any) -> Any:
    """The arguments with every tensor copied; copies require gradients where the originals did."""
    return tree_map_only(Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), values)


def _describe_damage(banded: Banded, changed: Tensor) -> str:
    """How many bytes changed, and where the first lies relative to the tensor's memory."""
    tensor = banded.tensor
    start = BAND + tensor.storage_offset() * tensor.element_size()
    first, count = int(changed.to(torch.uint8).argmax()), int(changed.sum())
    shape = f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    if first < start:
        return f"{count} bytes, the first {start - first} before the start of {shape}"
    if first >= banded.end:
        return f"{count} bytes, the first {first - banded.end} past the end of {shape}"
    return f"{count} bytes, the first at byte {first - start} of {shape}"
