"""Builds and loads the native library of an operator.

`<source root>/<operator>/*.cpp` (bindings and CPU code, compiled by the C++ compiler) and `*.cu` (CUDA code, compiled
by nvcc) become one shared library, stored under a key made of everything that goes into it. The same key is never built
twice, a build that was cut off leaves nothing that could be mistaken for a library, and one operator that does not
compile leaves the others alone.

On a CPU the `.cu` files stay out and bindings see `-DWARPWATCH_NO_CUDA`. On a CUDA device nvcc is needed, a GPU is not.
Include paths start at the source root: `#include "common/tensor.h"`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from warpwatch import _fingerprint, _ptxas, _toolchain
from warpwatch._ptxas import Resources
from warpwatch._toolchain import Compiler, ToolMissingError, Torch

__all__ = ["Built", "NativeUnavailable", "Resources", "build", "configure", "load", "operators"]

TARGET = "-DTORCH_TARGET_VERSION=0x020a000000000000"
"""The oldest torch whose stable ABI the libraries ask for: 2.10."""

# -std=c++20 alone would turn fused multiply-add off.
CXX_FLAGS = [
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-std=c++20",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    TARGET,
]
# Compressed machine code could not be fingerprinted, and small kernels hardly shrink.
NVCC_FLAGS = [
    "-O3",
    "-std=c++20",
    "-lineinfo",
    "-no-compress",
    "-Xptxas",
    "-v",
    "-Xcompiler",
    "-fPIC,-fvisibility=hidden",
]
# Error messages carry line numbers into the machine code, so that a comment would change it: fingerprints are taken
# without.
PRINT_FLAGS = ["-w", "-D__LINE__=0", '-D__DATE__=""', '-D__TIME__=""', '-D__TIMESTAMP__=""']
SANITIZE_FLAGS = ["-fsanitize=address", "-fno-omit-frame-pointer", "-g1"]
TORCH_LIBRARIES = ["-ltorch_cpu", "-lc10", "-ltorch"]

HOST_SUFFIXES = {".cpp", ".h", ".hpp"}
CUDA_SUFFIXES = {".cu", ".cuh"}


class NativeUnavailable(Exception):  # noqa: N818 - it states a fact about the machine, often no error at all
    """An operator's library cannot be used here; the message says why.

    status: "build_failed", or "unsupported" where the machine lacks a CUDA compiler.
    """

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Built:
    """What became of one build.

    status: "ok", "build_failed" (log says why) or "skipped" (nothing to build here; log says why). path: the library
    when ok. cached: it was there before. seconds: what this call took. log: what the compilers said. resources: one
    entry per CUDA kernel and architecture, and one per source file for the CPU. compile_seconds: what compilers and
    linker took when the library was built, this time or before.
    """

    status: str
    key: str = ""
    path: Path | None = None
    cached: bool = False
    seconds: float = 0.0
    log: str = ""
    resources: list[Resources] = field(default_factory=list)
    compile_seconds: float = 0.0

    @property
    def code_hash(self) -> str:
        """Fingerprint of all machine code in the library, the same for sources that differ in comments; "" when
        unknown."""
        if not self.resources or not all(entry.code_hash for entry in self.resources):
            return ""
        return _fingerprint.digest(sorted(self.resources))


@dataclass(slots=True)
class _State:
    source_root: Path
    cache: Path
    device: str
    sanitize: bool
    failed: dict[str, Built] = field(default_factory=dict)
    loaded: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Everything that goes into one library; `files` maps paths below the source root to their contents."""

    files: dict[str, bytes]
    cxx: Compiler
    nvcc: Compiler | None
    torch: Torch
    ninja: str
    sanitize: bool

    @property
    def key(self) -> str:
        parts: list[str | bytes] = [_toolchain.cpu_model(), self.cxx.version, self.torch.version, self.ninja_file()]
        parts.append(self.nvcc.version if self.nvcc else "no nvcc")
        for name, content in self.files.items():
            parts += [name, content]
        digest = hashlib.sha256()
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            digest.update(f"{len(data)}:".encode() + data)
        return digest.hexdigest()

    def ninja_file(self) -> str:
        """The rules and edges that ninja runs; paths are relative to the folder that holds a copy of the sources."""
        gencodes = _gencodes(self.nvcc.archs) if self.nvcc else []
        include = ["-isystem", str(self.torch.include), "-Icsrc"]
        sanitize = SANITIZE_FLAGS if self.sanitize else []
        host = [self.cxx.path, *CXX_FLAGS, *sanitize, *include, *([] if self.nvcc else ["-DWARPWATCH_NO_CUDA"])]
        lines = _rule("cxx", host, "-c $in -o $out")
        # Named first: where a linker takes the static C++ runtime, parts of it come to lie beside the one that torch
        # has loaded, and the first error message that an operator writes ends the process.
        runtime = [self.cxx.runtime] if self.cxx.runtime else []
        linker = [self.cxx.path, *sanitize, "-shared", ",".join(["-Wl,-z,defs,--no-as-needed", *runtime])]
        if self.nvcc:
            cuda = [self.nvcc.path, "-ccbin", self.cxx.path, *gencodes]
            lines += _rule("nvcc", [*cuda, *NVCC_FLAGS, "-Icsrc"], "-c $in -o $out")
            # NVIDIA's wheels keep libraries in `lib`, where their nvcc does not look by itself.
            libraries = f"-L{Path(self.nvcc.path).parent.parent / 'lib'}"
            linker = [*cuda, "-shared", libraries, "-Xlinker", ",".join(["-z,defs,--no-as-needed", *runtime])]
        lines += _rule("link", linker, "$in -o $out", f"-L{self.torch.libraries}", *TORCH_LIBRARIES)
        lines += _rule("print", [*host, *PRINT_FLAGS], "-c $in -o $out")
        objects = []
        for name in self.units:
            source = _escaped(f"csrc/{name}")
            objects.append(_escaped(f"{name}.o"))
            lines.append(f"build {objects[-1]}: {'cxx' if name.endswith('.cpp') else 'nvcc'} {source}")
            if name.endswith(".cpp"):
                lines.append(f"build {_escaped(f'{name}.print.o')}: print {source}")
        return "\n".join([*lines, f"build library.so: link {' '.join(objects)}", ""])

    @property
    def units(self) -> list[str]:
        """The sources that become an object file each."""
        return [name for name in self.files if name.endswith((".cpp", ".cu")) and not name.startswith("common/")]


_state: _State | None = None


def configure(source_root: Path, cache: Path, device: str, sanitize: bool = False) -> None:
    """Say where native sources lie, where libraries are kept, and for which device ("cpu", "cuda" or "cuda:0") they are
    built.

    source_root: the folder with one sub-folder per operator, and `common` for what they share. sanitize: compile C++
    for AddressSanitizer, whose runtime this process must have loaded before any other library.
    """
    global _state
    cache.mkdir(parents=True, exist_ok=True)
    _state = _State(source_root.resolve(), cache.resolve(), device, sanitize)


def operators() -> list[str]:
    """Names of the operators that have native sources, sorted."""
    root = _configured().source_root
    folders = [folder for folder in root.iterdir() if folder.name != "common"] if root.is_dir() else []
    return sorted(folder.name for folder in folders if any(folder.glob("*.cpp")))


def build(operator: str) -> Built:
    """The library of `operator`, built unless it exists. Never raises for what compilers or missing tools do."""
    state, started = _configured(), time.perf_counter()
    if operator not in operators():
        return Built("skipped", log=f"{operator} has no native sources of its own")
    try:
        plan = _plan(state, operator)
    except ToolMissingError as missing:
        return Built("build_failed", log=str(missing))
    if plan is None:
        return Built("skipped", log="no CUDA compiler: put nvcc of the CUDA toolkit on PATH or set CUDA_HOME")
    key = plan.key
    if key in state.failed:
        return state.failed[key]
    built = _stored(state.cache / key, started)
    if built is None:
        with _locked(state.cache / f"{key}.lock"):
            built = _stored(state.cache / key, started) or _compile(plan, state.cache / key, started)
    if built.status != "ok":
        state.failed[key] = built
    return built


def load(operator: str) -> None:
    """Make the torch operators of `operator`'s library callable. NativeUnavailable says why they cannot be."""
    built = build(operator)
    if built.path is None:
        raise NativeUnavailable("build_failed" if built.status == "build_failed" else "unsupported", built.log)
    loaded = _configured().loaded
    if loaded.get(operator) == built.key:
        return
    import torch

    try:
        torch.ops.load_library(str(built.path))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise NativeUnavailable("build_failed", f"the library of {operator} does not load: {error}") from error
    loaded[operator] = built.key


def _configured() -> _State:
    if _state is None:
        raise RuntimeError("warpwatch.native.configure() comes first")
    return _state


def _plan(state: _State, operator: str) -> _Plan | None:
    """What building `operator` takes; None when its CUDA sources find no compiler."""
    wants_cuda = state.device.startswith("cuda") and any((state.source_root / operator).glob("*.cu"))
    nvcc = _toolchain.cuda_compiler(state.cache) if wants_cuda else None
    if wants_cuda and nvcc is None:
        return None
    suffixes = HOST_SUFFIXES | CUDA_SUFFIXES if nvcc else HOST_SUFFIXES
    paths = [path for folder in ("common", operator) for path in sorted((state.source_root / folder).rglob("*"))]
    files = {
        path.relative_to(state.source_root).as_posix(): path.read_bytes()
        for path in paths
        if path.suffix in suffixes and path.is_file()
    }
    return _Plan(
        files, _toolchain.cxx_compiler(state.cache), nvcc, _toolchain.torch(), _toolchain.ninja(), state.sanitize
    )


def _stored(folder: Path, started: float) -> Built | None:
    """The finished build kept in `folder`, if there is one."""
    try:
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    resources = [Resources(*entry) for entry in record["resources"]]
    took = time.perf_counter() - started
    return Built("ok", folder.name, folder / "library.so", True, took, record["log"], resources, record["seconds"])


def _compile(plan: _Plan, folder: Path, started: float) -> Built:
    """Compile in a folder beside the final one and rename at the end, so that `folder` is whole whenever it exists.

    The sources are copied first: what is compiled is exactly what the key was made of, whatever happens to the checkout
    meanwhile.
    """
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name, content in plan.files.items():
        copy = unfinished / "csrc" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
    (unfinished / "build.ninja").write_text(plan.ninja_file(), encoding="utf-8")
    begun = time.perf_counter()
    code, output = _ninja(plan, unfinished, ["library.so"])
    seconds = time.perf_counter() - begun
    log = _ptxas.without_report(output)
    if code != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        return Built("build_failed", folder.name, None, False, time.perf_counter() - started, log, _ptxas.parse(output))
    _ninja(plan, unfinished, [f"{name}.print.o" for name in plan.units if name.endswith(".cpp")])
    resources = _resources(unfinished, plan.units, output)
    (unfinished / "build.log").write_text(output, encoding="utf-8")
    record = {"log": log, "resources": resources, "seconds": seconds}
    (unfinished / "record.json").write_text(json.dumps(record), encoding="utf-8")
    unfinished.rename(folder)
    return Built(
        "ok", folder.name, folder / "library.so", False, time.perf_counter() - started, log, resources, seconds
    )


def _ninja(plan: _Plan, folder: Path, targets: Sequence[str]) -> tuple[int, str]:
    """(exit status, what was printed) of building the targets as far as they can be built."""
    command = [plan.ninja, "--quiet", "-k", "0", *targets]
    result = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return result.returncode, result.stdout.decode(errors="replace")


def _resources(folder: Path, units: Sequence[str], output: str) -> list[Resources]:
    """What is known of the machine code of every kernel and of every source file's code for the CPU."""
    codes: dict[_fingerprint.KernelFingerprint, _fingerprint.MachineCode] = {}
    host: list[Resources] = []
    for name in units:
        source, whole, without_lines = Path(name).name, folder / f"{name}.o", folder / f"{name}.print.o"
        try:
            # A source may make names of line numbers, and then compiles with them only.
            arch, code = _fingerprint.host_code(without_lines if without_lines.exists() else whole)
            host.append(Resources(source, arch, code_bytes=code.bytes, code_hash=code.hash))
            if name.endswith(".cu"):
                codes.update(_fingerprint.device_code(whole))
        except (OSError, ValueError):
            # A library without a fingerprint works all the same; an entry without a hash says that nothing is known.
            host.append(Resources(source, "unknown"))
    return _ptxas.parse(output, codes) + host


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`; the system frees it even when the process is killed."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _gencodes(archs: Sequence[int]) -> list[str]:
    """Machine code for every architecture, and PTX of the newest for cards that come after it."""
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    return [*codes, f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}"]


def _rule(name: str, command: Sequence[str], operands: str, *last: str) -> list[str]:
    words = " ".join([_fixed(command), operands, _fixed(last)])
    return [f"rule {name}", f"  command = {words}", f"  description = {name} $out"]


def _fixed(words: Sequence[str]) -> str:
    """Words that both the shell and ninja take as they are."""
    return shlex.join(words).replace("$", "$$")


def _escaped(path: str) -> str:
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
