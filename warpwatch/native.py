"""Builds and loads the native library of an operator.

`<source root>/<operator>/*.cpp` (bindings and CPU code, for the C++ compiler) and `*.cu` (CUDA code, for nvcc) become
one shared library. Its key is a hash of sources, headers, flags, compilers, torch and CPU model, and the same key is
never built twice. An interrupted build leaves no partial library. An operator that fails to compile does not affect the
others.

For a CPU, `.cu` files are left out and bindings see `-DWARPWATCH_NO_CUDA`. For a CUDA device the build needs nvcc but
no GPU. Include paths start at the source root: `#include "common/tensor.h"`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from warpwatch import _fingerprint, _ptxas, _toolchain
from warpwatch._ptxas import Resources
from warpwatch._toolchain import Compiler, ToolMissingError, Torch

__all__ = [
    "Built",
    "NativeUnavailable",
    "Resources",
    "build",
    "configure",
    "configure_prebuilt",
    "configured",
    "find_key",
    "load",
    "operators",
]

TARGET = "-DTORCH_TARGET_VERSION=0x020a000000000000"
"""The oldest torch whose stable ABI the libraries use: 2.10."""

# -std=c++20 alone would disable fused multiply-add.
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
# Compressed machine code cannot be fingerprinted, and small kernels hardly shrink.
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
# Error messages put line numbers into the machine code, so a comment would change it. Fingerprints are taken without.
PRINT_FLAGS = ["-w", "-D__LINE__=0", '-D__DATE__=""', '-D__TIME__=""', '-D__TIMESTAMP__=""']
SANITIZE_FLAGS = ["-fsanitize=address", "-fno-omit-frame-pointer", "-g1"]
TORCH_LIBRARIES = ["-ltorch_cpu", "-lc10", "-ltorch"]

UNSAFE = frozenset("$`\"'\\|;&<>*?!")
"""Characters that no source may have in its name. nvcc gives names to a shell, which would run a command in them; a
line end, which would begin a rule of ninja with a command of its own, is refused as well."""
HOST_SUFFIXES = {".cpp", ".h", ".hpp"}
CUDA_SUFFIXES = {".cu", ".cuh"}


class NativeUnavailable(Exception):  # noqa: N818 - it often states a fact about the machine and no error.
    """An operator's library cannot be used here; the message says why.

    status: "build_failed", or "unsupported" where the machine lacks a CUDA compiler.
    """

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Built:
    """The result of one build.

    status: "ok", "build_failed" or "skipped" (nothing to build here); unless it is ok, log says why. path: the library
    when ok. cached: the library existed before. seconds: duration of this call. log: output of the compilers.
    resources: one entry per CUDA kernel and architecture, and one per source file for the CPU. compile_seconds:
    duration of compilers and linker when the library was built, now or earlier.
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
        """Fingerprint of all machine code in the library, which comments do not change; "" when unknown."""
        if not self.resources or not all(entry.code_hash for entry in self.resources):
            return ""
        return _fingerprint.digest(sorted(self.resources))


@dataclass(slots=True)
class _Configuration:
    """The arguments of `configure`, with the failed builds by key and the loaded keys by operator.

    prebuilt: a folder of libraries that were built elsewhere; nothing is built then.
    """

    source_root: Path
    cache: Path
    device: str
    sanitize: bool
    fingerprints: bool
    archs: Sequence[int] = _toolchain.CUDA_ARCHS
    prebuilt: Path | None = None
    failed: dict[str, Built] = field(default_factory=dict)
    loaded: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _BuildInputs:
    """Everything that determines one library; files: contents by path below the source root. ptx: the architecture of
    the code for later cards, None without."""

    files: dict[str, bytes]
    cxx: Compiler
    nvcc: Compiler | None
    ptx: int | None
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
        """The rules and edges for ninja; paths are relative to the folder with a copy of the sources."""
        include = ["-isystem", str(self.torch.include), "-Icsrc"]
        sanitize = SANITIZE_FLAGS if self.sanitize else []
        host = [
            self.cxx.path,
            *CXX_FLAGS,
            *_flags_of("CXXFLAGS"),
            *sanitize,
            *include,
            *([] if self.nvcc else ["-DWARPWATCH_NO_CUDA"]),
        ]
        lines = _rule("cxx", host, "-c $in -o $out")
        # The shared C++ runtime comes first. With a static one, the process would hold two C++ runtimes beside torch's,
        # and the first error message of an operator would crash it.
        runtime = [self.cxx.runtime] if self.cxx.runtime else []
        linker = [self.cxx.path, *sanitize, "-shared", ",".join(["-Wl,-z,defs,--no-as-needed", *runtime])]
        if self.nvcc:
            names = [_toolchain.ARCH_SPECIFIC.get(arch, str(arch)) for arch in self.nvcc.archs]
            targets = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in names]
            ptx = [f"-gencode=arch=compute_{self.ptx},code=compute_{self.ptx}"] if self.ptx else []
            cuda = [self.nvcc.path, "-ccbin", self.cxx.path, *targets, *ptx]
            lines += _rule("nvcc", [*cuda, *NVCC_FLAGS, *_flags_of("NVCCFLAGS"), "-Icsrc"], "-c $in -o $out")
            # NVIDIA's wheels put libraries into `lib`, which their nvcc does not search.
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
        """The sources that are compiled to an object file each."""
        return [name for name in self.files if name.endswith((".cpp", ".cu")) and not name.startswith("common/")]


def _flags_of(variable: str) -> list[str]:
    """The flags that an environment variable adds to our own flags, and that may override ours."""
    return shlex.split(os.environ.get(variable, ""))


_state: _Configuration | None = None


def configure(
    source_root: Path,
    cache: Path,
    device: str,
    sanitize: bool = False,
    *,
    fingerprints: bool = True,
    archs: Sequence[int] = _toolchain.CUDA_ARCHS,
) -> None:
    """Sets the source folder, the library cache and the device of all builds of this process.

    source_root: the folder with one sub-folder per operator, and `common` for shared sources. device: "cpu", "cuda" or
    "cuda:0". sanitize: compile C++ for AddressSanitizer, whose runtime must be the first library of this process.
    fingerprints: compile C++ once more, for a fingerprint of its machine code; without, that is unknown. archs: the
    CUDA architectures that libraries are built for; without the newest, they do not run on later cards.
    """
    global _state
    cache.mkdir(parents=True, exist_ok=True)
    _state = _Configuration(source_root.resolve(), cache.resolve(), device, sanitize, fingerprints, archs)


@contextmanager
def configured(source_root: Path, cache: Path, device: str, *, fingerprints: bool = True) -> Iterator[None]:
    """`configure` for one block: afterwards builds are as they were configured before, or not at all."""
    global _state
    before = _state
    configure(source_root, cache, device, fingerprints=fingerprints)
    try:
        yield
    finally:
        _state = before


def configure_prebuilt(libraries: Path) -> None:
    """Has `load` take the libraries in `libraries/<operator>/`, which the process may not write to, and build none."""
    global _state
    _state = _Configuration(libraries, libraries, "", False, False, prebuilt=libraries)


def operators() -> list[str]:
    """Names of the operators that have native sources, sorted."""
    root = _configured().source_root
    folders = [folder for folder in root.iterdir() if folder.name != "common"] if root.is_dir() else []
    return sorted(folder.name for folder in folders if any(folder.glob("*.cpp")))


def find_key(operator: str) -> Built:
    """The key of the library that `build` would build, with status "ok"; otherwise why there is nothing to build."""
    inputs = _inputs_or_reason(operator)
    return inputs if isinstance(inputs, Built) else Built("ok", inputs.key)


def build(operator: str) -> Built:
    """Builds the library of `operator` unless it exists. Failed compilers and missing tools become a status."""
    state, started = _configured(), time.perf_counter()
    inputs = _inputs_or_reason(operator)
    if isinstance(inputs, Built):
        return inputs
    key = inputs.key
    if key in state.failed:
        return state.failed[key]
    built = _stored(state.cache / key, started)
    if built is None:
        with _locked(state.cache / f"{key}.lock"):
            built = _stored(state.cache / key, started) or _compile(
                inputs, state.cache / key, started, state.fingerprints
            )
    if built.status != "ok":
        state.failed[key] = built
    return built


def load(operator: str) -> None:
    """Loads the library of `operator`, which registers its torch operators; raises NativeUnavailable when it cannot."""
    state = _configured()
    built = build(operator) if state.prebuilt is None else _prebuilt(state.prebuilt / operator)
    if built.path is None:
        raise NativeUnavailable("build_failed" if built.status == "build_failed" else "unsupported", built.log)
    if state.loaded.get(operator) == built.key:
        return
    import torch

    try:
        torch.ops.load_library(str(built.path))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise NativeUnavailable("build_failed", f"the library of {operator} does not load: {error}") from error
    state.loaded[operator] = built.key


def _configured() -> _Configuration:
    if _state is None:
        raise RuntimeError("native builds are not configured: call warpwatch.native.configure() first")
    return _state


def _inputs_or_reason(operator: str) -> _BuildInputs | Built:
    """The inputs of the build of `operator`, or why there is nothing to build."""
    if operator not in operators():
        return Built("skipped", log=f"{operator} has no native sources of its own")
    try:
        inputs = _build_inputs(_configured(), operator)
    except ToolMissingError as missing:
        return Built("build_failed", log=str(missing))
    if inputs is None:
        return Built("skipped", log="no CUDA compiler: put nvcc of the CUDA toolkit on PATH or set CUDA_HOME")
    for name in inputs.files:
        if not name.isprintable() or not UNSAFE.isdisjoint(name):
            words = "has line ends, or characters that a shell reads, in its name: rename it"
            return Built("build_failed", log=f"the source {name!r} {words}")
    return inputs


def _prebuilt(folder: Path) -> Built:
    """The library that was laid into `folder`, or why there is none."""
    try:
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Built("build_failed", log=f"the library of {folder.name} was not built")
    path = folder / "library.so" if record["status"] == "ok" else None
    return Built(record["status"], record["key"], path, True, log=record["log"] or record["message"])


def _build_inputs(state: _Configuration, operator: str) -> _BuildInputs | None:
    """The inputs of the build of `operator`; None when it has CUDA sources and there is no CUDA compiler."""
    wants_cuda = state.device.startswith("cuda") and any((state.source_root / operator).glob("*.cu"))
    nvcc = _toolchain.cuda_compiler(state.cache) if wants_cuda else None
    if wants_cuda and nvcc is None:
        return None
    ptx = None
    if nvcc:
        # Machine code for every architecture, and PTX of the newest one for later cards where that is built at all.
        ptx = nvcc.archs[-1] if nvcc.archs[-1] in state.archs else None
        nvcc = replace(nvcc, archs=tuple(arch for arch in nvcc.archs if arch in state.archs))
    suffixes = HOST_SUFFIXES | CUDA_SUFFIXES if nvcc else HOST_SUFFIXES
    paths = [path for folder in ("common", operator) for path in sorted((state.source_root / folder).rglob("*"))]
    files = {
        path.relative_to(state.source_root).as_posix(): path.read_bytes()
        for path in paths
        if path.suffix in suffixes and path.is_file()
    }
    cxx = _toolchain.cxx_compiler(state.cache)
    return _BuildInputs(files, cxx, nvcc, ptx, _toolchain.torch(), _toolchain.ninja(), state.sanitize)


def _stored(folder: Path, started: float) -> Built | None:
    """The finished build in `folder`; None when there is none."""
    try:
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    resources = [Resources(*entry) for entry in record["resources"]]
    seconds = time.perf_counter() - started
    return Built("ok", folder.name, folder / "library.so", True, seconds, record["log"], resources, record["seconds"])


def _compile(inputs: _BuildInputs, folder: Path, started: float, fingerprints: bool) -> Built:
    """Compiles in a folder beside the final one and renames it at the end, so that `folder` is complete if it exists.

    It compiles copies of the sources, so that a change of the checkout meanwhile cannot contradict the key.
    """
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name, content in inputs.files.items():
        copy = unfinished / "csrc" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
    (unfinished / "build.ninja").write_text(inputs.ninja_file(), encoding="utf-8")
    begin = time.perf_counter()
    code, output = _ninja(inputs, unfinished, ["library.so"])
    seconds = time.perf_counter() - begin
    log = _ptxas.without_report(output)
    if code != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        return Built("build_failed", folder.name, None, False, time.perf_counter() - started, log, _ptxas.parse(output))
    if fingerprints:
        _ninja(inputs, unfinished, [f"{name}.print.o" for name in inputs.units if name.endswith(".cpp")])
    resources = _resources(unfinished, inputs.units, output, fingerprints)
    (unfinished / "build.log").write_text(output, encoding="utf-8")
    record = {"log": log, "resources": resources, "seconds": seconds}
    (unfinished / "record.json").write_text(json.dumps(record), encoding="utf-8")
    unfinished.rename(folder)
    total = time.perf_counter() - started
    return Built("ok", folder.name, folder / "library.so", False, total, log, resources, seconds)


def _ninja(inputs: _BuildInputs, folder: Path, targets: Sequence[str]) -> tuple[int, str]:
    """Builds the targets, also after one has failed; (exit status, output)."""
    command = [inputs.ninja, "--quiet", "-k", "0", *targets]
    result = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return result.returncode, result.stdout.decode(errors="replace")


def _resources(folder: Path, units: Sequence[str], output: str, fingerprints: bool) -> list[Resources]:
    """The resources of every CUDA kernel, and of the CPU code of every source file."""
    codes: dict[_fingerprint.KernelFingerprint, _fingerprint.MachineCode] = {}
    host: list[Resources] = []
    for name in units:
        source, whole, without_lines = Path(name).name, folder / f"{name}.o", folder / f"{name}.print.o"
        try:
            # Some sources build names from line numbers and do not compile without them.
            arch, code = _fingerprint.host_code(without_lines if without_lines.exists() else whole)
            known = fingerprints or name.endswith(".cu")
            host.append(Resources(source, arch, code_bytes=code.bytes, code_hash=code.hash if known else ""))
            if name.endswith(".cu"):
                codes.update(_fingerprint.device_code(whole))
        except (OSError, ValueError):
            # A library works without a fingerprint; an entry without a hash means that it is unknown.
            host.append(Resources(source, "unknown"))
    return _ptxas.parse(output, codes) + host


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock file at `path`; the system releases it even when the process is killed."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _rule(name: str, command: Sequence[str], operands: str, *last: str) -> list[str]:
    words = " ".join([_quoted(command), operands, _quoted(last)])
    return [f"rule {name}", f"  command = {words}", f"  description = {name} $out"]


def _quoted(words: Sequence[str]) -> str:
    """Words quoted for both the shell and ninja."""
    return shlex.join(words).replace("$", "$$")


def _escaped(path: str) -> str:
    """A path escaped for a build edge of ninja."""
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
