"""Puts tensors between bands of known bytes, so that what a kernel writes or reads beside them is found.

Inputs lie in larger buffers, whose every byte must be what it was. Memory that the variant allocates through torch
comes from a dispatch mode, which pads each allocation and fills it with NaN (whole numbers: 77 in every byte), so that
an element never written does not pass for a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from .failures import WrongResultError
from .problem import CaseData

BAND = 64 * 1024
"""Bytes on either side: a tile of 128 x 128 floats that runs over still ends inside, and alignment is what torch gives.
"""
_AROUND_INPUTS = 0xFF
"""NaN in every floating-point format: a result that an element beside the input went into is not finite."""
_AROUND_OUTPUTS = 0x5A
"""Another byte, so that copying an input's band into an output's shows."""
_POISON = 77
_EMPTY = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided")
_FILLED = ("aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::clone")
_NAMESPACES = ("aten", "prim", "prims", "profiler", "c10d")

Layout = Callable[[Tensor], tuple[tuple[int, ...], int] | None]
"""Strides, and elements to skip at the front, that a tensor shall have; None to leave it where it is."""


def aligned(tensor: Tensor) -> tuple[tuple[int, ...], int]:
    """As the tensor is, at the front of an allocation."""
    return tuple(tensor.stride()), 0


def offset(tensor: Tensor) -> tuple[tuple[int, ...], int]:
    """As the tensor is, one element further: contiguous, but not aligned to more than an element."""
    return tuple(tensor.stride()), 1


def strided(tensor: Tensor) -> tuple[tuple[int, ...], int] | None:
    """Every second element of a buffer; None for a tensor that is not contiguous already, or that one element fills."""
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
    """`data` laid out anew, each tensor alone in a buffer of known bytes."""

    def __init__(self, data: CaseData, layout: Layout) -> None:
        self._placed: list[tuple[Banded, Tensor]] = []
        self.data = data.map(lambda tensor: self._place(tensor, layout))

    @property
    def placed(self) -> int:
        """Tensors that were laid out anew."""
        return len(self._placed)

    def expect_intact(self) -> None:
        """Raises WrongResultError when any byte in or around a tensor changed."""
        for placed, before in self._placed:
            # Compared as whole words, which is several times faster than byte by byte.
            if not torch.equal(placed.buffer.view(torch.int64), before.view(torch.int64)):
                name = next(name for name, candidate in self.data.tensors() if candidate is placed.tensor)
                where = _place_of(placed, placed.buffer != before)
                raise WrongResultError(f"it writes into the memory of its input {name}: {where}")

    def _place(self, tensor: Tensor, layout: Layout) -> Tensor:
        # Tensors whose elements share memory, or have none, stay as they are.
        plain = tensor.layout is torch.strided and not any(
            step == 0 and n > 1 for step, n in zip(tensor.stride(), tensor.shape, strict=True)
        )
        wanted = layout(tensor) if plain else None
        if wanted is None:
            return tensor.detach().clone(memory_format=torch.preserve_format)
        strides, skipped = wanted
        placed = _banded(tensor, strides, skipped, _AROUND_INPUTS)
        placed.tensor.copy_(tensor.detach())
        self._placed.append((placed, placed.buffer.clone()))
        return placed.tensor


class GuardedAllocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, memory allocated through torch's dispatcher, native libraries' included, lies between bands and is
    poisoned.

    calls: the operators outside torch that were called, each with the arguments of its first call.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._allocations: list[Banded] = []
        self.calls: dict[OpOverload[..., Any], tuple[tuple[Any, ...], dict[str, Any]]] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs as compiled; otherwise torch.compile would fall back to what it was made from."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **named)
        if func.namespace not in _NAMESPACES:
            return self._foreign(func, args, named)
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
                raise WrongResultError(f"it writes beside memory that it allocated: {_place_of(banded, changed)}")

    def owns(self, tensor: Tensor) -> bool:
        """Whether the tensor lies in memory that was guarded."""
        storage = tensor.untyped_storage().data_ptr()
        return any(banded.buffer.data_ptr() + BAND == storage for banded in self._allocations)

    def _foreign(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls an operator of a library with the mode on, so that what its kernel allocates is guarded too."""
        if func not in self.calls:
            # Copied before the call, which may change them.
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


def _banded(like: Tensor, strides: tuple[int, ...], skipped: int, byte: int) -> Banded:
    """A tensor with the shape and dtype of `like` in a buffer of such bytes, with a band on either side.

    Its storage holds the tensor alone: torch itself takes for granted that what it allocates begins where its storage
    does.
    """
    extent = 1 + sum((n - 1) * stride for n, stride in zip(like.shape, strides, strict=True)) if like.numel() else 0
    size = (skipped + extent) * like.element_size()
    # Whole words of eight bytes, as these are compared.
    buffer = torch.full(((BAND + size + BAND + 7) // 8 * 8,), byte, dtype=torch.uint8, device=like.device)
    storage = torch._C._construct_storage_from_data_pointer(buffer.data_ptr() + BAND, like.device, size)
    # Whoever keeps the tensor keeps the buffer.
    storage.buffer = buffer  # type: ignore[attr-defined]
    tensor = torch.empty(0, dtype=like.dtype, device=like.device)
    tensor.set_(storage, skipped if extent else 0, like.shape, strides)
    return Banded(buffer, tensor, BAND + size)


def _copied(values: Any) -> Any:
    """The same arguments with tensors of their own, of which gradients are asked where they were."""
    return tree_map_only(Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), values)


def _place_of(banded: Banded, changed: Tensor) -> str:
    """How many bytes changed, and where the first lies, seen from the tensor's own memory."""
    tensor = banded.tensor
    start = BAND + tensor.storage_offset() * tensor.element_size()
    first, count = int(changed.to(torch.uint8).argmax()), int(changed.sum())
    what = f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    if first < start:
        return f"{count} bytes, the first {start - first} before the start of {what}"
    if first >= banded.end:
        return f"{count} bytes, the first {first - banded.end} past the end of {what}"
    return f"{count} bytes, the first at byte {first - start} of {what}"
