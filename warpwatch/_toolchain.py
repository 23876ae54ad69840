"""Finds the tools of native builds: compilers and their versions, ninja, torch's headers, and the CPU model."""

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
"""Compute capabilities times ten of the machine code in every CUDA library, as far as the compiler supports them."""
ARCH_SPECIFIC = {90: "90a"}
"""Names of targets with instructions that no other architecture has: wgmma and setmaxnreg on Hopper."""


class ToolMissingError(Exception):
    """A tool that the build needs is missing; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler. version: its own report. archs: supported CUDA_ARCHS (nvcc only). runtime: path of the shared GNU C++
    runtime (C++ only, "" when it has none)."""

    path: str
    version: str
    archs: tuple[int, ...] = ()
    runtime: str = ""


@dataclass(frozen=True, slots=True)
class Torch:
    """The torch that libraries are built for, located without importing it."""

    version: str
    include: Path
    libraries: Path


def cxx_compiler(cache: Path) -> Compiler:
    """The C++ compiler: $CXX, else the first of g++, c++, clang++ on PATH."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        path = shutil.which(name) if name else None
        if path:
            runtime = _cached_output(cache, path, "-print-file-name=libstdc++.so.6").strip()
            # A compiler that does not find the library prints the bare name.
            runtime = runtime if Path(runtime).is_absolute() else ""
            return Compiler(path, _cached_output(cache, path, "--version"), runtime=runtime)
    raise ToolMissingError(
        "no C++ compiler: install g++ 11 or newer (Debian, Ubuntu: apt install g++), or set CXX to one"
    )


def cuda_compiler(cache: Path) -> Compiler | None:
    """nvcc from PATH, $CUDA_HOME, /usr/local/cuda or the wheels of the extra `nvcc`; None where there is none."""
    # NVIDIA's wheels put a toolkit into `nvidia/cu13` in site-packages.
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(folder, "cu13") for folder in (spec.submodule_search_locations or ())] if spec else []
    toolkits = [folder for folder in (os.environ.get("CUDA_HOME"), "/usr/local/cuda", *wheels) if folder]
    folders = os.pathsep.join(str(Path(folder, "bin")) for folder in toolkits)
    path = shutil.which("nvcc") or shutil.which("nvcc", path=folders)
    if path is None:
        return None
    supported = _cached_output(cache, path, "--list-gpu-code").split()
    archs = tuple(arch for arch in CUDA_ARCHS if f"sm_{arch}" in supported)
    return Compiler(path, _cached_output(cache, path, "--version"), archs)


def ninja() -> str:
    """The path of ninja, from the PyPI package or from PATH."""
    if importlib.util.find_spec("ninja"):
        import ninja as package

        binary = Path(package.BIN_DIR, "ninja")
        if binary.exists():
            return str(binary)
    path = shutil.which("ninja")
    if path is None:
        raise ToolMissingError("no ninja: pip install ninja")
    return path


@functools.cache
def torch() -> Torch:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ToolMissingError("no torch: pip install torch")
    folder = Path(spec.origin).parent
    return Torch(importlib.metadata.version("torch"), folder / "include", folder / "lib")


@functools.cache
def cpu_model() -> str:
    """The CPU's name and feature flags, which -march=native depends on; machines that share a cache differ in them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    facts = [line for line in lines if line.startswith(("model name", "flags", "CPU part", "Features"))]
    return "\n".join([platform.machine(), *sorted(set(facts))])


def _cached_output(cache: Path, path: str, option: str) -> str:
    """The output of the tool at `path` with `option`, cached until the tool's file changes.

    The cache pays because nvcc takes 0.1 s to print its version.
    """
    stat = Path(path).resolve().stat()
    key = f"{path} {option} {stat.st_mtime_ns} {stat.st_size}"
    file = cache / "compilers.json"
    outputs: dict[str, str] = {}
    try:
        outputs = json.loads(file.read_text(encoding="utf-8"))
        return outputs[key]
    except (OSError, ValueError, KeyError):
        pass
    outputs[key] = _run([path, option])
    # Several threads may write at once, so each writes its own file and renames it.
    unfinished = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}.tmp")
    unfinished.write_text(json.dumps(outputs), encoding="utf-8")
    unfinished.replace(file)
    return outputs[key]


def _run(command: Sequence[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ToolMissingError(f"{' '.join(command)} fails:\n{result.stderr or result.stdout}")
    return result.stdout
