"""What the harness relies on, bound before any code of the commit runs and held against what is there afterwards.

Code that shares a process with its judge can reach everything the judge uses. So clocks, events, synchronisation,
comparisons and the harness's own functions are remembered while only the harness has run. What was replaced since is
put back, and named. It stops tricks, not a determined attacker: native code can change any byte of the process.
docs/measurement.md says what is left.
"""

from __future__ import annotations

import builtins
import gc
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from .failures import WrongResultError

_TORCH = (
    "allclose",
    "empty",
    "empty_like",
    "equal",
    "frexp",
    "full",
    "full_like",
    "isclose",
    "isfinite",
    "ldexp",
    "no_grad",
    "ones_like",
    "randint",
    "randn",
    "set_grad_enabled",
    "sort",
    "tensor",
    "unravel_index",
    "zeros",
    "zeros_like",
)
_CUDA = (
    "CUDAGraph",
    "Event",
    "Stream",
    "_sleep",
    "current_stream",
    "mem_get_info",
    "memory_allocated",
    "stream",
    "synchronize",
)
_WATCHED_CLASSES = (Tensor, torch.cuda.Event, torch.cuda.Stream, torch.cuda.CUDAGraph, torch.Generator)
_CHANGE_OFTEN = {"__import__", "_", "breakpoint", "displayhook", "input", "open", "print"}
"""Built-ins that honest programs replace; the harness measures with none of them."""
_CLOCKWORK = ("harness.timer_", "harness.rotation", "harness.bench")
_MISSING = object()


@dataclass(frozen=True, slots=True)
class _Binding:
    """`owner.name` was `value`; label is how a person would write it."""

    label: str
    owner: Any
    name: str
    value: Any

    def holds(self) -> bool:
        if isinstance(self.owner, FunctionType):
            return getattr(self.owner, self.name) is self.value
        return vars(self.owner).get(self.name, _MISSING) is self.value

    def restore(self) -> None:
        setattr(self.owner, self.name, self.value)


class TamperGuard:
    """The bindings as they are when this is made, which must be before the commit's own code is imported."""

    def __init__(self) -> None:
        self._bindings = [*_library_bindings(), *_own_bindings()]
        self._clockwork = [binding for binding in self._bindings if binding.label.startswith(_CLOCKWORK)]
        self._names: dict[type, frozenset[str]] = {owner: frozenset(vars(owner)) for owner in _WATCHED_CLASSES}

    def mend(self) -> list[str]:
        """Puts back what was replaced; returns its names."""
        broken = [binding for binding in self._bindings if not binding.holds()]
        shadowed = [(owner, name) for owner in _WATCHED_CLASSES for name in self._shadowing(owner)]
        # Whatever was put into the way may be one of the functions used here, so the list is complete before the
        # mending starts.
        for binding in broken:
            binding.restore()
        for owner, name in shadowed:
            delattr(owner, name)
        return [binding.label for binding in broken] + [f"{_owner_name(owner)}.{name}" for owner, name in shadowed]

    def expect_clockwork(self) -> None:
        """As `expect_whole`, for the few bindings that samples are taken with: cheap enough to be asked after every
        slice."""
        if not all(binding.holds() for binding in self._clockwork):
            self.expect_whole()

    def expect_whole(self) -> None:
        """Mends; raises WrongResultError when there was something to mend."""
        replaced = self.mend()
        if replaced:
            raise _blame("it", replaced)

    def _shadowing(self, owner: type) -> list[str]:
        """Attributes given to a class since, in front of one that it inherits."""
        added = vars(owner).keys() - self._names[owner]
        return [name for name in added if any(name in vars(base) for base in owner.__mro__[1:])] if added else []


@contextmanager
def watch(seal: TamperGuard, who: str = "it", *, may_set: bool = False) -> Iterator[None]:
    """Raises WrongResultError when what runs inside leaves bindings replaced or, unless it `may_set` them, settings
    changed.

    Whatever becomes of it, both are as before afterwards, so that nobody else is blamed.
    """
    before = _settings()
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - what was bent may be why anything failed, and says more.
        failure = error
    finally:
        replaced, after = seal.mend(), _settings()
        _put_back(before)
    if replaced:
        raise _blame(who, replaced) from failure
    changed = [f"{name} from {before[name]} to {after[name]}" for name in before if before[name] != after[name]]
    if changed and not may_set and (failure is None or isinstance(failure, WrongResultError)):
        raise WrongResultError(f"{who} changes how the process is measured: {'; '.join(changed)}") from failure
    if failure is not None:
        raise failure


def _blame(who: str, replaced: list[str]) -> WrongResultError:
    return WrongResultError(f"{who} replaces what it is judged with: {', '.join(sorted(replaced)[:5])}")


def expect_plain(result: Tensor) -> None:
    """Raises WrongResultError for a tensor whose numbers are not there yet: they would be computed after the clock has
    stopped."""
    if type(result) not in (Tensor, torch.nn.Parameter):
        kind = type(result).__name__
        raise WrongResultError(
            f"it returned a {kind} and no plain torch.Tensor: its numbers may be computed when they are looked at"
        )
    if result.is_neg() or result.is_conj():
        raise WrongResultError("it returned a lazy view: its numbers would be computed by whoever reads them")


def _put_back(settings: dict[str, Any]) -> None:
    """Sets what `_settings` read, as far as it can be set."""
    for name, (_, write) in _SETTINGS.items():
        if write is not None and _SETTINGS[name][0]() != settings[name]:
            write(settings[name])


def _settings() -> dict[str, Any]:
    return {name: read() for name, (read, _) in _SETTINGS.items()}


def _affinity() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _function_modes() -> int:
    return int(torch._C._len_torch_function_stack())


def _dispatch_modes() -> int:
    return int(torch._C._len_torch_dispatch_stack())


def _set_reduced(name: str) -> Callable[[Any], None]:
    return lambda value: setattr(torch.backends.cuda.matmul, name, value)


_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any] | None]] = {
    "the number of CPU threads": (torch.get_num_threads, torch.set_num_threads),
    "the CPUs it may use": (_affinity, lambda cpus: os.sched_setaffinity(0, cpus)),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "cuDNN's TF32": (
        lambda: torch.backends.cudnn.allow_tf32,
        lambda value: setattr(torch.backends.cudnn, "allow_tf32", value),
    ),
    "reduced-precision sums of f16": (
        lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        _set_reduced("allow_fp16_reduced_precision_reduction"),
    ),
    "reduced-precision sums of bf16": (
        lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        _set_reduced("allow_bf16_reduced_precision_reduction"),
    ),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch function modes": (_function_modes, None),
    "torch dispatch modes": (_dispatch_modes, None),
}
"""What a variant finds set and must leave so: how to read it, and how to put it back."""


_OWN = (f"{__package__.rpartition('.')[0]}.", "warpwatch.contract.")
"""Prefixes of the modules that measure and judge."""


def _library_bindings() -> Iterator[_Binding]:
    """Functions of Python and torch that measuring and judging go through."""
    for module in (time, math, gc, threading):
        yield from _callables(module, module.__name__, vars(module))
    yield from _callables(builtins, "builtins", vars(builtins).keys() - _CHANGE_OFTEN)
    yield from _callables(torch, "torch", _TORCH)
    yield from _callables(torch.cuda, "torch.cuda", _CUDA)
    yield from _callables(torch.linalg, "torch.linalg", ("norm", "vector_norm", "matrix_norm"))
    yield from _callables(torch.autograd, "torch.autograd", ("grad",))
    yield from _callables(torch.testing, "torch.testing", ("assert_close",))
    for owner in _WATCHED_CLASSES:
        for name, value in list(vars(owner).items()):
            if callable(value) and name not in ("__class__", "__doc__"):
                yield _Binding(f"{_owner_name(owner)}.{name}", owner, name, value)


def _own_bindings() -> Iterator[_Binding]:
    """Everything that the harness and what crosses a process define or import, with the insides of their functions and
    classes."""
    for name, module in list(sys.modules.items()):
        if not name.startswith(_OWN) or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if attribute.startswith("__"):
                continue
            label = f"{name.removeprefix(_OWN[0])}.{attribute}"
            yield _Binding(label, module, attribute, value)
            if getattr(value, "__module__", None) == name:
                yield from _insides(label, value)


def _insides(label: str, value: Any) -> Iterator[_Binding]:
    if isinstance(value, FunctionType):
        yield from (
            _Binding(label, value, name, getattr(value, name))
            for name in ("__code__", "__defaults__", "__kwdefaults__")
        )
    elif isinstance(value, type):
        for name, member in list(vars(value).items()):
            if isinstance(member, FunctionType):
                yield _Binding(f"{label}.{name}", value, name, member)
                yield from _insides(f"{label}.{name}", member)


def _callables(owner: Any, label: str, names: Any) -> Iterator[_Binding]:
    for name in names:
        value = vars(owner).get(name)
        if callable(value):
            yield _Binding(f"{label}.{name}", owner, name, value)


def _owner_name(owner: type) -> str:
    return f"torch.cuda.{owner.__name__}" if owner.__module__.startswith("torch.cuda") else f"torch.{owner.__name__}"
