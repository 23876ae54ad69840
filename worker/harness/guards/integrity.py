"""Detects and undoes replacements of the functions and settings that the harness measures and checks with.

Kernel code shares the process with the harness, so it can reach clocks, events, synchronisation, comparisons and the
harness's own functions. A TamperGuard remembers all of these before any code of the commit runs. Afterwards it restores
and names what was replaced. It stops tricks and not a determined attacker: native code can change any byte of the
process. docs/measurement.md lists what remains possible.
"""

from __future__ import annotations

import builtins
import gc
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from warpwatch.contract.words import Fault
from warpwatch.operator import Operator

from ..failures import WrongResultError
from . import l2

_TORCH = (
    "_foreach_copy_",
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
    "where",
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
"""Built-ins that honest programs replace; the harness does not measure with them."""
_TIMERS = ("cpu", "cuda", "kernel", "launch", "rotation")
_TIMING_PREFIXES = ("harness.bench", *(f"harness.timers.{name}" for name in _TIMERS))
"""Labels of the bindings that samples are taken with begin so."""
_MISSING = object()


@dataclass(frozen=True, slots=True)
class _Binding:
    """`owner.name` is expected to be `value`; label: how people write the name."""

    label: str
    owner: Any
    name: str
    value: Any

    def restore(self) -> None:
        if isinstance(self.owner, Operator):
            object.__setattr__(self.owner, self.name, self.value)  # An operator is frozen.
        else:
            setattr(self.owner, self.name, self.value)


class _Bindings:
    """Bindings, grouped by how each is looked up: thousands are compared around every slice, so none of that calls
    Python code."""

    def __init__(self, bindings: Iterable[_Binding]) -> None:
        self._by_attribute: list[tuple[_Binding, Any, str, Any]] = []
        self._by_namespace: list[tuple[_Binding, Mapping[str, Any], str, Any]] = []
        self.add(bindings)

    def add(self, bindings: Iterable[_Binding]) -> None:
        for binding in bindings:
            if isinstance(binding.owner, FunctionType | Operator):
                self._by_attribute.append((binding, binding.owner, binding.name, binding.value))
            else:
                # The namespace of a module or class stays the same object.
                self._by_namespace.append((binding, vars(binding.owner), binding.name, binding.value))

    def list_replaced(self) -> list[_Binding]:
        return [
            *(binding for binding, owner, name, value in self._by_attribute if getattr(owner, name) is not value),
            *(binding for binding, space, name, value in self._by_namespace if space.get(name, _MISSING) is not value),
        ]


class TamperGuard:
    """Remembers all bindings as they are now. Make it before any code of the commit is imported."""

    def __init__(self) -> None:
        l2.read_set_aside()
        bindings = [*_library_bindings(), *_harness_bindings()]
        self._bindings = _Bindings(bindings)
        self._timing_bindings = _Bindings([b for b in bindings if b.label.startswith(_TIMING_PREFIXES)])
        self._names: dict[type, frozenset[str]] = {owner: frozenset(vars(owner)) for owner in _WATCHED_CLASSES}

    def protect(self, operator: Operator) -> None:
        """Also watches what a definition says of its operator, without its variants: no measured code may change it."""
        for field in fields(operator):
            if field.name == "variants":
                continue
            label, value = f"{operator.name}.{field.name}", getattr(operator, field.name)
            self._bindings.add([_Binding(label, operator, field.name, value), *_members(label, value)])

    def restore(self) -> list[str]:
        """Restores every replaced binding; returns their labels."""
        replaced = self._bindings.list_replaced()
        shadowed = [(owner, name) for owner in _WATCHED_CLASSES for name in self._shadowing(owner)]
        # A replaced function may be one that is used here, so both lists are complete before anything is restored.
        for binding in replaced:
            binding.restore()
        for owner, name in shadowed:
            delattr(owner, name)
        return [binding.label for binding in replaced] + [f"{_owner_name(owner)}.{name}" for owner, name in shadowed]

    def expect_timing_bindings_intact(self) -> None:
        """Checks only the bindings that samples are taken with, which is cheap enough after every slice.

        Restores all bindings and raises WrongResultError when one was replaced.
        """
        if self._timing_bindings.list_replaced() and (replaced := self.restore()):
            raise _tampering("The variant", replaced)

    def _shadowing(self, owner: type) -> list[str]:
        """New attributes of a class that hide an inherited one."""
        added = vars(owner).keys() - self._names[owner]
        return [name for name in added if any(name in vars(base) for base in owner.__mro__[1:])] if added else []


@contextmanager
def watch(guard: TamperGuard, culprit: str = "The variant", *, may_set: bool = False) -> Iterator[None]:
    """Raises WrongResultError when the code inside replaces bindings or, unless `may_set`, changes settings.

    Both are restored in any case, so that the next variant is not blamed.
    """
    before = _read_settings()
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a replaced function may have caused any error, and explains it better.
        failure = error
    finally:
        replaced, after = guard.restore(), _read_settings()
        for name, (read, write) in _SETTINGS.items():
            if write is not None and read() != before[name]:
                write(before[name])
    if replaced:
        raise _tampering(culprit, replaced) from failure
    changed = {name: f"{name} from {before[name]} to {after[name]}" for name in before if before[name] != after[name]}
    if changed and not may_set and (failure is None or isinstance(failure, WrongResultError)):
        message = f"{culprit} changes settings of the process: {'; '.join(changed.values())}"
        raise WrongResultError(message, Fault.CHANGED_SETTING, *changed) from failure
    if failure is not None:
        raise failure


def _tampering(culprit: str, replaced: list[str]) -> WrongResultError:
    names = sorted(replaced)[:5]
    message = f"{culprit} replaces functions that measure or check it: {', '.join(names)}"
    return WrongResultError(message, Fault.REPLACED_FUNCTION, *names)


def expect_unaltered(samples: Sequence[float], kept: Sequence[float]) -> None:
    """Raises WrongResultError when a list of times, which frames lead to, differs from the tuple of the same times."""
    if tuple(samples) != kept:
        message = "The variant searches the harness's memory: times that were taken have changed since"
        raise WrongResultError(message, Fault.SEARCHED_MEMORY, "times")


def _read_settings() -> dict[str, Any]:
    return {name: read() for name, (read, _) in _SETTINGS.items()}


def _set_reduced_sums(name: str) -> Callable[[Any], None]:
    return lambda value: setattr(torch.backends.cuda.matmul, name, value)


_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any] | None]] = {
    "the number of CPU threads": (torch.get_num_threads, torch.set_num_threads),
    "the CPUs it may use": (
        lambda: sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        lambda cpus: os.sched_setaffinity(0, cpus),
    ),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "cuDNN's TF32": (
        lambda: torch.backends.cudnn.allow_tf32,
        lambda value: setattr(torch.backends.cudnn, "allow_tf32", value),
    ),
    "reduced-precision sums of f16": (
        lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        _set_reduced_sums("allow_fp16_reduced_precision_reduction"),
    ),
    "reduced-precision sums of bf16": (
        lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        _set_reduced_sums("allow_bf16_reduced_precision_reduction"),
    ),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    l2.SET_ASIDE: (l2.read_set_aside, l2.write_set_aside),
    l2.POLICY: (l2.read_policy, l2.write_policy),
    "torch function modes": (lambda: int(torch._C._len_torch_function_stack()), None),
    "torch dispatch modes": (lambda: int(torch._C._len_torch_dispatch_stack()), None),
}
"""Settings that a variant must leave unchanged: how to read each, and how to restore it (None: it cannot be)."""


_HARNESS_PREFIXES = (f"{__package__.rsplit('.', 2)[0]}.", "warpwatch.contract.", "warpwatch.quantization")
"""Prefixes of the modules that measure and judge. Operator files import the last, too."""


def _library_bindings() -> Iterator[_Binding]:
    """Functions of Python and torch that measuring and judging depend on."""
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
                if isinstance(value, FunctionType):
                    yield from _members(f"{_owner_name(owner)}.{name}", value)


def _harness_bindings() -> Iterator[_Binding]:
    """Everything that the harness and the contract define or import, including the code of functions and methods."""
    for name, module in list(sys.modules.items()):
        if not name.startswith(_HARNESS_PREFIXES) or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if attribute.startswith("__"):
                continue
            label = f"{name.removeprefix(_HARNESS_PREFIXES[0])}.{attribute}"
            yield _Binding(label, module, attribute, value)
            if isinstance(value, FunctionType) or getattr(value, "__module__", None) == name:
                yield from _members(label, value)


def _members(label: str, value: Any) -> Iterator[_Binding]:
    """The code and defaults of a function; the methods of a class with theirs."""
    if isinstance(value, FunctionType):
        yield from (
            _Binding(label, value, name, getattr(value, name))
            for name in ("__code__", "__defaults__", "__kwdefaults__")
        )
    elif isinstance(value, type):
        for name, member in list(vars(value).items()):
            if isinstance(member, FunctionType):
                yield _Binding(f"{label}.{name}", value, name, member)
                yield from _members(f"{label}.{name}", member)


def _callables(owner: Any, label: str, names: Any) -> Iterator[_Binding]:
    for name in names:
        value = vars(owner).get(name)
        if callable(value):
            yield _Binding(f"{label}.{name}", owner, name, value)
            if isinstance(value, FunctionType):
                yield from _members(f"{label}.{name}", value)


def _owner_name(owner: type) -> str:
    return f"torch.cuda.{owner.__name__}" if owner.__module__.startswith("torch.cuda") else f"torch.{owner.__name__}"
