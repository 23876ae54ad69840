"""Fingerprints machine code: the instructions and constants, without paths, line tables and messages.

It parses object files (ELF, 64 bit, little endian) itself, because cuobjdump and nvdisasm are not on every machine. A
CUDA object holds one cubin per architecture in its section `.nv_fatbin`; a cubin has one `.text.<kernel>` section per
kernel.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_EXECUTABLE, _STRINGS = 0x4, 0x20
_PROGBITS, _SYMTAB, _RELA, _REL = 1, 2, 4, 9
_MACHINES = {62: "x86-64", 183: "aarch64"}
_FAT_MAGIC = struct.pack("<I", 0xBA55ED50)
_FAT_CUBIN = 2
_KERNEL = ".text."
# Initial values of the variables of a module, which belong to all of its kernels.
_MODULE_DATA = (".nv.constant3", ".nv.global.init")
# nvcc puts a hash of the source's path into the names of file-local symbols.
_PATH_HASH = re.compile(rb"(_GLOBAL__N__|_INTERNAL_)[0-9a-f]{8}_(\d+)_(\w+?)_[0-9a-f]{8}")
# Code that registers operators and kernels once when the library is loaded.
_START_UP = (".text.startup", ".text.exit")


class MachineCode(NamedTuple):
    """Machine code of one object or kernel: its length in bytes, and the first 16 hex digits of its SHA-256."""

    bytes: int
    hash: str


class KernelFingerprint(NamedTuple):
    """The key of a kernel's machine code: its mangled symbol and its architecture, such as "sm_90"."""

    symbol: str
    arch: str


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


def host_code(path: Path) -> tuple[str, MachineCode]:
    """(architecture, CPU code) of an object file; ValueError for any other file."""
    elf = _Elf(path.read_bytes())
    chosen = [
        section
        for section in elf.sections
        if section.kind == _PROGBITS
        and not section.name.startswith(_START_UP)
        and (section.flags & _EXECUTABLE or (section.name.startswith(".rodata") and not section.flags & _STRINGS))
    ]
    size = sum(section.size for section in chosen if section.flags & _EXECUTABLE)
    return _MACHINES.get(elf.machine, f"machine {elf.machine}"), MachineCode(size, elf.digest(chosen))


def device_code(path: Path) -> Mapping[KernelFingerprint, MachineCode]:
    """The machine code of every kernel in an object file of nvcc; ValueError for any other file."""
    data = path.read_bytes()
    codes: dict[KernelFingerprint, MachineCode] = {}
    for fat in (section for section in _Elf(data).sections if section.name == ".nv_fatbin"):
        for arch, cubin in _cubins(data[fat.offset : fat.offset + fat.size]):
            elf = _Elf(cubin)
            for section in elf.sections:
                if section.kind == _PROGBITS and section.name.startswith(_KERNEL):
                    symbol = section.name.removeprefix(_KERNEL)
                    codes[KernelFingerprint(symbol, f"sm_{arch}")] = _kernel_code(elf, section)
    return codes


def cubin_code(cubin: bytes, symbol: str) -> MachineCode | None:
    """The machine code of one kernel in a cubin; None where the cubin has no such kernel, or is none."""
    try:
        elf = _Elf(cubin)
    except ValueError:
        return None
    return next((_kernel_code(elf, section) for section in elf.sections if section.name == _KERNEL + symbol), None)


def _kernel_code(elf: _Elf, section: _Section) -> MachineCode:
    """The code of a kernel with its own constants, and with what the variables of its module hold at the start. Bank 0
    holds the arguments of a launch."""
    own = re.compile(rf"\.nv\.constant[1-9]\d*\.{re.escape(section.name.removeprefix(_KERNEL))}")
    data = [
        other
        for other in elf.sections
        if other.kind == _PROGBITS and (other.name in _MODULE_DATA or own.fullmatch(other.name))
    ]
    return MachineCode(section.size, elf.digest([section, *data]))


def digest(parts: Iterable[object]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 over the parts as text."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def _cubins(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(architecture, cubin) of every entry of a `.nv_fatbin` section that is neither compressed nor PTX."""
    start = data.find(_FAT_MAGIC)
    while start >= 0:
        _, _, header, length = struct.unpack_from("<IHHQ", data, start)
        place, end = start + header, start + header + length
        while place < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, place)
            (arch,) = struct.unpack_from("<I", data, place + 28)
            body = data[place + header : place + header + size]
            if kind == _FAT_CUBIN and body.startswith(b"\x7fELF"):
                yield arch, body
            place += header + size
            if header + size == 0:
                return
        start = data.find(_FAT_MAGIC, end)


class _Elf:
    """The sections, symbols and relocations of one ELF file."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian object file")
        self._data = data
        try:
            (self.machine,) = struct.unpack_from("<H", data, 18)
            (table,) = struct.unpack_from("<Q", data, 40)
            size, count, names = struct.unpack_from("<HHH", data, 58)
            raw = [struct.unpack_from("<IIQQQQIIQQ", data, table + index * size) for index in range(count)]
            strings = raw[names][4] if raw else 0
            self.sections = [
                _Section(self._text(strings + name).decode(errors="replace"), kind, flags, offset, length, link, info)
                for name, kind, flags, _, offset, length, link, info, _, _ in raw
            ]
        except (struct.error, IndexError) as error:
            raise ValueError(f"damaged object file: {error}") from error

    def digest(self, chosen: list[_Section]) -> str:
        """Hash of the sections' contents and relocations, since the code does not hold the target of a call."""
        sha = hashlib.sha256()
        for section in sorted(chosen, key=lambda section: section.name):
            content = self._data[section.offset : section.offset + section.size]
            sha.update(_without_path_hash(section.name.encode()) + b"\0" + content)
            for text in self._relocations(section):
                sha.update(text + b"\0")
        return sha.hexdigest()[:16]

    def _relocations(self, section: _Section) -> Iterator[bytes]:
        index = self.sections.index(section)
        for table in self.sections:
            if table.kind not in (_RELA, _REL) or table.info != index:
                continue
            length = 24 if table.kind == _RELA else 16
            for place in range(table.offset, table.offset + table.size, length):
                offset, info = struct.unpack_from("<QQ", self._data, place)
                addend = struct.unpack_from("<q", self._data, place + 16)[0] if table.kind == _RELA else 0
                yield b"%d %d %s" % (offset, info & 0xFFFFFFFF, self._target(table.link, info >> 32, addend))

    def _target(self, symbols: int, index: int, addend: int) -> bytes:
        """Name and addend of the target of a relocation; just "string" for a target among strings."""
        table = self.sections[symbols]
        name, _, _, home, _, _ = struct.unpack_from("<IBBHQQ", self._data, table.offset + index * 24)
        section = self.sections[home] if home < len(self.sections) else None
        if section is not None and section.flags & _STRINGS:
            return b"string"
        text = self._text(self.sections[table.link].offset + name)
        return b"%s%+d" % (_without_path_hash(text or (section.name.encode() if section else b"")), addend)

    def _text(self, offset: int) -> bytes:
        return self._data[offset : self._data.index(b"\0", offset)]


def _without_path_hash(symbol: bytes) -> bytes:
    return _PATH_HASH.sub(rb"\1\2_\3", symbol)
