"""Parses the report of nvcc's assembler (`-Xptxas -v`): registers, shared memory and spills of every kernel."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

from warpwatch._fingerprint import KernelFingerprint, MachineCode

_ENTRY = re.compile(r"Compiling entry function '(?P<name>\S+)' for '(?P<arch>\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_NOISE = re.compile(r"^(ptxas info\s*:|\s+\d+ bytes stack frame)")


class Resources(NamedTuple):
    """Static facts of one kernel on one architecture ("sm_90"); spill_bytes are spill stores plus loads.

    code_bytes and code_hash: length and fingerprint of its machine code, 0 and "" when unknown. CPU code has one entry
    per source file ("square.cpp", "x86-64"), without registers and shared memory.
    """

    name: str
    arch: str
    registers: int = 0
    shared_bytes: int = 0
    spill_bytes: int = 0
    code_bytes: int = 0
    code_hash: str = ""


def parse(log: str, codes: Mapping[KernelFingerprint, MachineCode] | None = None) -> list[Resources]:
    """The kernels in `log`, in its order, with their machine code from `codes`."""
    kernels: list[Resources] = []
    codes = codes or {}
    symbol = arch = ""
    spills = 0
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            # Code for one architecture only is built for "sm_90a"; the fat binary says 90, and so do earlier builds.
            symbol, arch, spills = entry["name"], entry["arch"].rstrip("af"), 0
        elif match := _SPILLS.search(line):
            spills = int(match[1]) + int(match[2])
        elif symbol and (used := _USED.search(line)):
            shared = _SHARED.search(line)
            shared_bytes = int(shared[1]) if shared else 0
            code = codes.get(KernelFingerprint(symbol, arch), MachineCode(0, ""))
            kernels.append(Resources(short_name(symbol), arch, int(used[1]), shared_bytes, spills, *code))
            symbol = ""
    return kernels


def without_report(log: str) -> str:
    """`log` without the assembler's report, which is stored as Resources."""
    return "\n".join(line for line in log.splitlines() if not _NOISE.match(line)).strip()


def short_name(symbol: str) -> str:
    """`_Z6squareIfEvPKfPfi` → `square<float>`: demangled, without return type, anonymous namespace and parameters."""
    text = re.sub(r"> (?=>)", ">", _demangle(symbol))
    text = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|_INTERNAL_\w+::", "", text)
    return _cut_return_type(_cut_parameters(text))


def _cut_parameters(text: str) -> str:
    depth = 0
    for i, letter in enumerate(text):
        if letter == "(" and depth == 0:
            return text[:i]
        depth += {"<": 1, ">": -1}.get(letter, 0)
    return text


def _cut_return_type(text: str) -> str:
    depth, start = 0, 0
    for i, letter in enumerate(text):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == " " and depth == 0:
            start = i + 1
    return text[start:]


def _demangle(symbol: str) -> str:
    library = _libstdcxx()
    if library is None:
        return symbol
    status = ctypes.c_int()
    pointer = library.__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not pointer:
        return symbol
    text = ctypes.string_at(pointer).decode()
    library.free(pointer)
    return text


@functools.cache
def _libstdcxx() -> ctypes.CDLL | None:
    """The C++ runtime of g++ and torch, which demangles names without binutils."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return None
    library.__cxa_demangle.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    return library
