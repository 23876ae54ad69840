"""Finds what native builds need: compilers and their versions, ninja, torch's headers, this machine's CPU."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CUDA_ARCHS = (80, 90, 100)
"""Compute capabilities times ten that every CUDA library carries machine code for, as far as the compiler knows them.
"""


class ToolMissingError(Exception):
    """A tool that the build needs is not here; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """path, the version it reports, (nvcc alone) the architectures it can write code for, and (C++ alone) where its
    shared runtime library lies, or nothing where it has none of GNU's."""

    path: str
    version: str
    archs: tuple[int, ...] = ()
    runtime: str = ""


@dataclass(frozen=True, slots=True)
class Torch:
    """The torch that libraries are built for, found without importing it."""

    version: str
    include: Path
    libraries: Path


def cxx_compiler(cache: Path) -> Compiler:
    """The C++ compiler: $CXX, else the first of g++, c++, clang++ on PATH."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        path = shutil.which(name) if name else None
        if path:
            runtime = _ask(cache, path, "-print-file-name=libstdc++.so.6").strip()
            # A compiler that does not find it answers with the bare name.
            return Compiler(
                path, _ask(cache, path, "--version"), runtime=runtime if Path(runtime).is_absolute() else ""
            )
    raise ToolMissingError(
        "no C++ compiler: install g++ 11 or newer (Debian, Ubuntu: apt install g++), or set CXX to one"
    )


def cuda_compiler(cache: Path) -> Compiler | None:
    """nvcc from PATH, $CUDA_HOME, /usr/local/cuda or the wheels of the extra `nvcc`; None where there is none."""
    folders = [
        Path(folder, "bin") for folder in (os.environ.get("CUDA_HOME"), "/usr/local/cuda", *_cuda_wheels()) if folder
    ]
    path = shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(map(str, folders)))
    if path is None:
        return None
    known = _ask(cache, path, "--list-gpu-code").split()
    return Compiler(path, _ask(cache, path, "--version"), tuple(arch for arch in CUDA_ARCHS if f"sm_{arch}" in known))


def _cuda_wheels() -> list[Path]:
    """Where NVIDIA's wheels put a toolkit: `nvidia/cu13` beside other packages."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(folder, "cu13") for folder in (spec.submodule_search_locations or ())] if spec else []


def ninja() -> str:
    """ninja's binary, from the PyPI package or from PATH."""
    if importlib.util.find_spec("ninja"):
        import ninja as package

        path = Path(package.BIN_DIR, "ninja")
        if path.exists():
            return str(path)
    found = shutil.which("ninja")
    if found is None:
        raise ToolMissingError("no ninja: pip install ninja")
    return found


@functools.cache
def torch() -> Torch:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ToolMissingError("no torch: pip install torch")
    folder = Path(spec.origin).parent
    return Torch(importlib.metadata.version("torch"), folder / "include", folder / "lib")


@functools.cache
def cpu_model() -> str:
    """What -march=native depends on: the CPU's name and feature flags, so that machines can share one cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    facts = [line for line in lines if line.startswith(("model name", "flags", "CPU part", "Features"))]
    return "\n".join([platform.machine(), *sorted(set(facts))])


def _ask(cache: Path, path: str, question: str) -> str:
    """What the tool at `path` answers; remembered until the file changes, because nvcc takes a tenth of a second to say
    its version."""
    stat = Path(path).resolve().stat()
    entry = f"{path} {question} {stat.st_mtime_ns} {stat.st_size}"
    memory = cache / "compilers.json"
    known: dict[str, str] = {}
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
        return known[entry]
    except (OSError, ValueError, KeyError):
        pass
    known[entry] = _run([path, question])
    # Several threads may ask at once.
    unfinished = memory.with_suffix(f".{os.getpid()}-{threading.get_ident()}.tmp")
    unfinished.write_text(json.dumps(known), encoding="utf-8")
    unfinished.replace(memory)
    return known[entry]


def _run(command: Sequence[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ToolMissingError(f"{' '.join(command)} fails:\n{result.stderr or result.stdout}")
    return result.stdout
