"""Records which kernels a call launches, with the hash of their machine code, whoever compiled them.

CUPTI tells of every module that the driver loads (from nvcc, Triton, Inductor, NVRTC, CuTe DSL or a library), with its
machine code, and of every launch. Nothing that is timed runs meanwhile: a recorder is open while a check runs, and is
closed before anything else is measured, because CUPTI serves one subscriber, and torch's profiler wants to be it.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from warpwatch import _fingerprint
from warpwatch._ptxas import short_name
from warpwatch.contract.measurement import MOST_LAUNCHED, LaunchedCode, LaunchedKernel

from ..driver import cuda_driver

_DRIVER, _RESOURCE = 1, 3
"""Domains of CUPTI's callbacks."""
_MODULE_LOADED, _MODULE_UNLOADS = 6, 7
_ENTER = 0
_LOADS = ("cuModuleLoad",)
_WORK = ("cuLaunch", "cuGraphLaunch", "cuMemcpy", "cuMemset")
"""Beginnings of the names of functions that load modules, and of those that give the device work."""
_LAST_CALLBACK = 1200
_MOST_BYTES = 2**29
"""Of machine code that is kept to be hashed; kernels of modules beyond it have no hash."""
_HANDLE_BITS = 20
"""Smaller words are numbers, never addresses."""
_REGISTERS, _LOCAL, _SHARED = 4, 3, 1
"""Attributes of a function, by the driver's numbers."""
_COPIES = re.compile(r"cuMemcpy(Async|[HD]to[HD]Async_v2|[HD]to[HD]_v2|)|cuMemset(D8|D16|D32)(Async|_v2)?")
"""Copies and fills whose first three arguments are all there is to them."""


class _CallbackData(ctypes.Structure):
    _fields_ = (
        ("site", ctypes.c_int),
        ("function", ctypes.c_char_p),
        ("params", ctypes.c_void_p),
        ("returned", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
    )


class _ResourceData(ctypes.Structure):
    _fields_ = (("context", ctypes.c_void_p), ("handle", ctypes.c_void_p), ("descriptor", ctypes.c_void_p))


class _ModuleData(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint32), ("size", ctypes.c_size_t), ("cubin", ctypes.c_void_p))


class _Shape(ctypes.Structure):
    """The first fields of a launch in the driver."""

    _fields_ = (("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("shape", _Shape),
        ("stream", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.POINTER(ctypes.c_void_p)),
    )


class _LaunchEx(ctypes.Structure):
    _fields_ = (
        ("config", ctypes.POINTER(_Shape)),
        ("function", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.POINTER(ctypes.c_void_p)),
    )


_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class _Function:
    """A kernel as the driver knows it. fields: offset and size in bytes of each of its arguments."""

    symbol: str
    code_hash: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    fields: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Recorded:
    """The launches, copies and fills of a call in their order. is_complete: whether all that ran on the device is
    among them, with all that its time depends on but the contents of memory."""

    kernels: Counter[tuple[_Function, tuple[int, ...], tuple[int, ...]]] = field(default_factory=Counter)
    sequence: list[str] = field(default_factory=list)
    is_complete: bool = True


class LaunchRecording:
    """Hears of all modules that are loaded while it is open, and of the launches within `recording`."""

    def __init__(self) -> None:
        self._cupti: ctypes.CDLL | None = None
        self._driver = cuda_driver()
        self._callback = _Callback(self._hear)
        self._subscriber = ctypes.c_void_p()
        self._modules: dict[int, bytes] = {}
        self._loading: list[int] = []
        self._by_handle: dict[int, int] = {}
        self._functions: dict[int, _Function] = {}
        self._recorded: _Recorded | None = None
        self._names: dict[int, str] = {}
        self.is_open = False

    def open(self) -> None:
        """Subscribes; where CUPTI is missing or serves another, nothing is recorded."""
        if self.is_open or self._driver is None:
            return
        # Most children check nothing, so that the library is looked for here.
        self._cupti = _cupti()
        if self._cupti is None:
            return
        if self._cupti.cuptiSubscribe(ctypes.byref(self._subscriber), self._callback, None) != 0:
            return
        self.is_open = True
        self._names = self._names or _names(self._cupti)
        for event in (_MODULE_LOADED, _MODULE_UNLOADS):
            self._cupti.cuptiEnableCallback(1, self._subscriber, _RESOURCE, event)
        self._enable(_LOADS, 1)

    def close(self) -> None:
        """Ends the subscription, so that nothing is called back any more."""
        if self.is_open and self._cupti is not None:
            self._cupti.cuptiUnsubscribe(self._subscriber)
            self.is_open = False
            for known in (self._modules, self._by_handle, self._functions):
                known.clear()

    @contextmanager
    def recording(self) -> Iterator[_Recorded | None]:
        """Collects what the block launches; None where nothing can be recorded."""
        if not self.is_open:
            yield None
            return
        torch.cuda.synchronize()
        self._recorded = recorded = _Recorded()
        self._enable(_WORK, 1)
        try:
            yield recorded
            torch.cuda.synchronize()
        finally:
            self._enable(_WORK, 0)
            self._recorded = None

    def _enable(self, prefixes: tuple[str, ...], state: int) -> None:
        assert self._cupti is not None
        for number, name in self._names.items():
            if name.startswith(prefixes):
                self._cupti.cuptiEnableCallback(state, self._subscriber, _DRIVER, number)

    def _hear(self, _user: Any, domain: int, number: int, data: int) -> None:
        """CUPTI's callback. An exception in it would be printed and lost, so that it makes the record incomplete."""
        try:
            if domain == _RESOURCE:
                self._hear_of_module(number, data)
            else:
                self._hear_of_call(self._names.get(number, ""), _CallbackData.from_address(data))
        except Exception:  # noqa: BLE001 - whatever it was, the record lacks something
            if self._recorded is not None:
                self._recorded.is_complete = False

    def _hear_of_module(self, number: int, data: int) -> None:
        module = _ModuleData.from_address(_ResourceData.from_address(data).descriptor)
        if number == _MODULE_UNLOADS:
            self._modules.pop(module.id, None)
            # Another module may get its handle.
            self._by_handle = {handle: id_ for handle, id_ in self._by_handle.items() if id_ != module.id}
            self._functions.clear()
        elif sum(map(len, self._modules.values())) + module.size <= _MOST_BYTES:
            self._modules[module.id] = ctypes.string_at(module.cubin, module.size)
            self._loading.append(module.id)

    def _hear_of_call(self, name: str, data: _CallbackData) -> None:
        if name.startswith("cuModuleLoad"):
            if data.site == _ENTER:
                self._loading.clear()
            elif len(self._loading) == 1:
                # The first argument of each of these functions is where the handle goes.
                place = ctypes.c_void_p.from_address(data.params).value
                handle = ctypes.c_void_p.from_address(place).value if place else None
                if handle:
                    self._by_handle[handle] = self._loading[0]
            return
        if data.site != _ENTER or self._recorded is None:
            return
        plain = name.removesuffix("_ptsz").removesuffix("_ptds")
        if plain in ("cuLaunchKernel", "cuLaunchCooperativeKernel"):
            launch = _Launch.from_address(data.params)
            # A cooperative launch has no `extra`.
            extra = launch.extra if plain == "cuLaunchKernel" else None
            self._add(launch.function, launch.shape, launch.arguments, extra)
        elif plain == "cuLaunchKernelEx":
            launch_ex = _LaunchEx.from_address(data.params)
            self._add(launch_ex.function, launch_ex.config.contents, launch_ex.arguments, launch_ex.extra)
        elif _COPIES.fullmatch(plain):
            # Where it goes, then where it comes from or what fills it, and how much.
            _, source, size = struct.unpack("<3Q", ctypes.string_at(data.params, 24))
            value = source & 0xFFFFFFFF if plain.startswith("cuMemset") else ""
            self._recorded.sequence.append(f"{plain} {value} {size}")
        elif plain != "cuLaunchHostFunc":
            self._recorded.is_complete = False

    def _add(self, handle: int, shape: _Shape, arguments: Any, extra: Any) -> None:
        assert self._recorded is not None
        if handle not in self._functions:
            self._functions[handle] = self._describe(handle)
        function = self._functions[handle]
        grid, block = tuple(shape.grid), tuple(shape.block)
        self._recorded.kernels[function, grid, block] += 1
        given = self._read_arguments(function, arguments, extra)
        self._recorded.is_complete &= bool(function.code_hash)
        self._recorded.sequence.append(f"{function} {grid} {block} {shape.shared} {given}")

    def _describe(self, handle: int) -> _Function:
        driver, function = self._driver, ctypes.c_void_p(handle)
        module, name = ctypes.c_void_p(), ctypes.c_char_p()
        assert driver is not None
        if driver.cuFuncGetModule(ctypes.byref(module), function) != 0:
            # The runtime launches by a handle of a library's kernel.
            actual = ctypes.c_void_p()
            if driver.cuKernelGetFunction(ctypes.byref(actual), function) == 0:
                function = actual
                driver.cuFuncGetModule(ctypes.byref(module), function)
        driver.cuFuncGetName(ctypes.byref(name), function)
        symbol = (name.value or b"").decode(errors="replace")
        registers, shared, local = (self._attribute(function, number) for number in (_REGISTERS, _SHARED, _LOCAL))
        fields, offset, size = list[tuple[int, int]](), ctypes.c_size_t(), ctypes.c_size_t()
        while (
            driver.cuFuncGetParamInfo(function, ctypes.c_size_t(len(fields)), ctypes.byref(offset), ctypes.byref(size))
            == 0
        ):
            fields.append((offset.value, size.value))
        return _Function(symbol, self._hash(module.value, symbol), registers, shared, local, tuple(fields))

    def _attribute(self, function: ctypes.c_void_p, number: int) -> int:
        value = ctypes.c_int()
        assert self._driver is not None
        self._driver.cuFuncGetAttribute(ctypes.byref(value), number, function)
        return value.value

    def _hash(self, module: int | None, symbol: str) -> str:
        """Of the function's machine code; "" where two loaded modules have different code under its name, and the
        driver does not say which of them it is."""
        known = self._by_handle.get(module or 0)
        chosen = [self._modules[known]] if known in self._modules else list(self._modules.values())
        wanted = symbol.encode()
        hashes = {
            code.hash
            for cubin in chosen
            if wanted in cubin and (code := _fingerprint.cubin_code(cubin, symbol)) is not None
        }
        return hashes.pop() if len(hashes) == 1 else ""

    def _read_arguments(self, function: _Function, arguments: Any, extra: Any) -> str:
        """The numbers and addresses that a launch is given, without the values of addresses.

        Structures are left out, also those of one byte: what compilers leave between their fields differs from process
        to process, and with them torch and cuBLAS describe tensors, which the grid and the results show as well.
        """
        buffer = _buffer(extra) if extra and not arguments else b""
        given = []
        for index, (offset, size) in enumerate(function.fields):
            if size not in (2, 4, 8):
                continue
            value = ctypes.string_at(arguments[index], size) if arguments else buffer[offset : offset + size]
            number = int.from_bytes(value, "little")
            given.append(self._neutral(number) if size == 8 else str(number))
        return " ".join(given)

    def _neutral(self, word: int) -> str:
        """The word, or "address" for one of memory."""
        if word >> _HANDLE_BITS == 0 or word >> 48:
            return str(word)
        kind = ctypes.c_uint()
        assert self._driver is not None
        # 2: the type of the memory.
        is_memory = self._driver.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(word)) == 0
        return "address" if is_memory or word >> 40 else str(word)


def describe(recorded: _Recorded | None, results: Sequence[torch.Tensor]) -> LaunchedCode | None:
    """What a call launched; None where nothing was recorded.

    results: of the call. Their bits are part of the digest, since the time of a kernel may depend on what it reads.
    """
    if recorded is None:
        return None
    kernels = [
        LaunchedKernel(
            short_name(function.symbol)[:1000],
            function.code_hash,
            function.registers,
            function.shared_bytes,
            function.spill_bytes,
            list(grid),
            list(block),
            count,
        )
        for (function, grid, block), count in recorded.kernels.most_common(MOST_LAUNCHED)
    ]
    if not recorded.is_complete or not recorded.kernels:
        return LaunchedCode(kernels, "")
    return LaunchedCode(kernels, _fingerprint.digest([*recorded.sequence, *map(_digest_bits, results)]))


def _digest_bits(tensor: torch.Tensor) -> str:
    flat = tensor.detach().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(flat.cpu().numpy().tobytes()).hexdigest()


def _buffer(extra: Any) -> bytes:
    """The arguments of a launch that gives them as one buffer: key, value pairs that end with a null."""
    found: dict[int, int] = {}
    for index in range(0, 8, 2):
        if not extra[index]:
            break
        found[extra[index]] = extra[index + 1]
    pointer, size = 1, 2
    return ctypes.string_at(found[pointer], ctypes.c_size_t.from_address(found[size]).value)


@cache
def _cupti() -> ctypes.CDLL | None:
    """The library that torch's profiler has loaded; None without one."""
    try:
        maps = Path("/proc/self/maps").read_text()
        found = re.search(r"(/\S*libcupti\.so\S*)$", maps, re.MULTILINE)
        return ctypes.CDLL(found[1] if found else "libcupti.so")
    except OSError:
        return None


def _names(cupti: ctypes.CDLL) -> dict[int, str]:
    """The functions of the driver that matter here, by the number of their callback."""
    names = {}
    for number in range(1, _LAST_CALLBACK):
        name = ctypes.c_char_p()
        if cupti.cuptiGetCallbackName(_DRIVER, number, ctypes.byref(name)) == 0 and name.value:
            text = name.value.decode()
            if text.startswith((*_LOADS, *_WORK)):
                names[number] = text
    return names
