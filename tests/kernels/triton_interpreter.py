"""Makes Triton's interpreter twice as fast, by remembering what it computes anew for every value of a program.

Nothing that a kernel computes changes: types and shapes are functions of their arguments, and a patch of the language
that was applied does not need to be applied again before the kernel ends.
"""

from __future__ import annotations

from typing import Any

import triton.runtime.interpreter as interpreter
from triton.language import core

_patched: set[int] = set()
"""The globals (by id) of device functions that the running kernel has called."""


def speed_up() -> None:
    interpreter._get_np_dtype = _by_name(interpreter._get_np_dtype)
    core.block_type.__init__ = _remember_blocks(core.block_type.__init__)
    core.tensor.__init__ = _remember_shapes(core.tensor.__init__)
    interpreter.GridExecutor.__call__ = _forget_patches(interpreter.GridExecutor.__call__)
    interpreter.InterpretedFunction.__call__ = _call_device_function


def _by_name(function: Any) -> Any:
    """The numpy type of a Triton type; names of types are unique."""
    known: dict[str, Any] = {}

    def remember(dtype: Any) -> Any:
        if dtype.name not in known:
            known[dtype.name] = function(dtype)
        return known[dtype.name]

    return remember


def _remember_blocks(init: Any) -> Any:
    known: dict[Any, tuple[Any, ...]] = {}

    def remember(self: Any, element_ty: Any, shape: Any) -> None:
        if not all(type(size) is int for size in shape):
            init(self, element_ty, shape)
            return
        key = element_ty.name, tuple(shape)
        if key not in known:
            init(self, element_ty, shape)
            known[key] = self.shape, self.numel, self.name
        self.element_ty = element_ty
        self.shape, self.numel, self.name = known[key]

    return remember


def _remember_shapes(init: Any) -> Any:
    known: dict[str, tuple[Any, Any]] = {}

    def remember(self: Any, handle: Any, type: Any) -> None:  # noqa: A002 - Triton's name, some calls use it
        if type.name not in known:
            init(self, handle, type)
            known[type.name] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = known[type.name]

    return remember


def _forget_patches(call: Any) -> Any:
    def run(self: Any, *args: Any, **options: Any) -> Any:
        _patched.clear()
        return call(self, *args, **options)

    return run


def _call_device_function(self: Any, *args: Any, **options: Any) -> Any:
    """Triton's own version looks through the whole language at every call for functions it has not patched yet."""
    if id(self.fn.__globals__) not in _patched:
        interpreter._patch_lang(self.fn)
        _patched.add(id(self.fn.__globals__))
    try:
        return self.rewrite()(*args, **options)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error
