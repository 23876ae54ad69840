"""Finds sanitizers, wraps a child's command in one, and reads the first finding of its report.

NVIDIA's compute-sanitizer wraps the child on a GPU; on a CPU the operator's library is built with -fsanitize=address
and the child loads AddressSanitizer's runtime before all else, as Python itself was built without it. Needs the
standard library alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from warpwatch.contract.spec import ADDRESS, SANITIZERS
from warpwatch.worker.trees import Tree

SLOWER = 10
"""How many times longer a case may take under a sanitizer."""
_TOOLKIT = Path("/usr/local/cuda")
_REPORT = "sanitizer"
_REPORT_LIMIT = 2**20
_REPORTS = 100
_ASAN_OPTIONS = "detect_leaks=0:alloc_dealloc_mismatch=0:detect_odr_violation=0:allocator_may_return_null=1"
_ASAN_SUMMARY = re.compile(r"^SUMMARY: AddressSanitizer: (.+)$", re.MULTILINE)
_FINDING = re.compile(
    r"Race reported|hazard|Invalid |Uninitialized |Misaligned |Barrier error|out of bounds|is out of", re.IGNORECASE
)
_PREFIX = re.compile(r"^=========\s*")


class SanitizerMissingError(Exception):
    """The requested sanitizer cannot be used on this machine or device; the message says why."""


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """How a child runs under it: words before the command and variables, in which `{temp}` stands for the child's temp
    folder."""

    name: str
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def wrap(self, command: list[str], temp: Path) -> list[str]:
        return [*(word.replace("{temp}", str(temp)) for word in self.command), *command]

    def variables(self, temp: Path) -> dict[str, str]:
        return {name: value.replace("{temp}", str(temp)) for name, value in self.environment.items()}


def find_sanitizer(name: str, device_kind: str) -> Sanitizer:
    """The sanitizer of that name for children on such a device; SanitizerMissingError when there is none."""
    if name not in SANITIZERS:
        raise SanitizerMissingError(f"there is no sanitizer {name!r}; choose from {', '.join(SANITIZERS)}")
    if SANITIZERS[name] != device_kind:
        others = ", ".join(tool for tool, kind in SANITIZERS.items() if kind == device_kind)
        raise SanitizerMissingError(
            f"{name} looks at {SANITIZERS[name].upper()} code; for this device there is {others}"
        )
    return _address() if name == ADDRESS else _compute(name)


def first_finding(name: str, temp: Tree) -> str | None:
    """The first finding of the sanitizer in one line: hazard, kernel and place; None when there is none."""
    text = "\n".join(_reports(temp))
    if name == ADDRESS:
        summary = _ASAN_SUMMARY.search(text)
        return f"{name} sanitizer: {summary.group(1)}" if summary else None
    lines = [_PREFIX.sub("", line) for line in text.splitlines()]
    start = next((i for i, line in enumerate(lines) if _FINDING.search(line) and "SUMMARY" not in line), None)
    if start is None:
        return None
    # The lines that follow say in which kernel, by which thread and at which address; a blank one ends the finding.
    rest = [line.strip() for line in lines[start + 1 : start + 4]]
    details = rest[: rest.index("")] if "" in rest else rest
    return f"{name}: {'; '.join([lines[start].strip(), *details])}"[:600]


def _reports(temp: Tree) -> Iterator[str]:
    """The reports; kernel code may have put anything in their place."""
    names = sorted(entry.name for entry in temp.entries() if entry.name.startswith(_REPORT))
    for name in names[:_REPORTS]:
        with contextlib.suppress(OSError):
            yield temp.read(name, _REPORT_LIMIT).decode(errors="replace")


def _address() -> Sanitizer:
    compiler = next((path for path in map(shutil.which, (os.environ.get("CXX") or "g++", "g++", "c++")) if path), None)
    if compiler is None:
        raise SanitizerMissingError("no C++ compiler: install g++")
    # A library that throws needs the real C++ runtime to be there when the sanitizer starts.
    libraries = [_library(compiler, "libasan.so"), _library(compiler, "libstdc++.so.6")]
    options = f"{_ASAN_OPTIONS}:log_path={{temp}}/{_REPORT}"
    return Sanitizer(ADDRESS, (), {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": options})


def _library(compiler: str, name: str) -> str:
    """The compiler's own copy of a runtime library."""
    path = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False
    ).stdout.strip()
    if not Path(path).is_absolute():
        raise SanitizerMissingError(
            f"{compiler} has no {name}: AddressSanitizer comes with g++ (Debian, Ubuntu: apt install g++)"
        )
    return str(Path(path).resolve())


def _compute(tool: str) -> Sanitizer:
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    toolkits = [Path(folder) for folder in (os.environ.get("CUDA_HOME"), _TOOLKIT) if folder]
    toolkits += [folder for wheel in wheels for folder in sorted(wheel.glob("cu*"))]
    places = [folder / part for folder in toolkits for part in ("bin", "compute-sanitizer")]
    program = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join(map(str, places))
    )
    if program is None:
        raise SanitizerMissingError(
            "compute-sanitizer is not installed: put the CUDA toolkit's on PATH, or set CUDA_HOME"
        )
    words = [program, "--tool", tool, "--log-file", f"{{temp}}/{_REPORT}.log", "--print-limit", "20"]
    if tool == "memcheck":
        # Torch makes runtime calls that may fail without harm.
        words += ["--report-api-errors", "no"]
    # Torch's allocator caches memory, in which a read beyond a tensor is not out of bounds.
    return Sanitizer(tool, tuple(words), {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if tool != "racecheck" else {})
