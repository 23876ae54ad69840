"""torch's C++ headers, precompiled once for all children that measure on a CPU.

Before torch.compile makes its first kernel for a CPU, it precompiles its headers into the temporary folder and finds
out what the CPU can do: 8 s of work for kernels of 1 s each. A child's temporary folder vanishes with it, and what a
commit's code has written must not reach another commit. So a jail of its own, which holds no code of any commit,
compiles one kernel, and children read the headers that this leaves from a folder that they cannot write to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from functools import cache
from pathlib import Path

from warpwatch._toolchain import ToolMissingError, cpu_model, cxx_compiler
from warpwatch.settings import user_cache
from warpwatch.worker.bytecode import read_interpreter
from warpwatch.worker.files import read_regular, walk_regular
from warpwatch.worker.jailed import ended, keep
from warpwatch.worker.sandbox import JIT, USER, Confinement

_KEPT_SECONDS = 30 * 86_400
"""Headers that no child has used for so long are removed, 150 MB each."""
_SECONDS = 300.0
_LIMIT_BYTES = 2**30
_LIMIT_FILES = 1_000
_DEPTH = 4
_HEADERS = Path(f"torchinductor_{USER}", "precompiled_headers")
"""Where torch has them in the temporary folder: the path holds the name of the user."""
_PROBES = Path(JIT, "inductor")
_LOCK = ".lock"
"""Of files that torch opens for writing, each child its own."""
_DONE = "done"
_COMPILE = f"""
import os, torch
torch.compile(torch.neg)(torch.ones(1))
open(os.path.join(os.environ["TMPDIR"], "{_DONE}"), "w").close()
"""


@cache
def prepare(interpreter: str, confinement: Confinement, *, make: bool) -> Path | None:
    """The folder with the headers for this interpreter's torch; None where there is none, and where the sandbox would
    let a child write to it.

    make: whether to make the folder unless it exists.
    """
    if not confinement.has_namespaces or confinement.image is not None:
        return None
    with contextlib.suppress(OSError, ToolMissingError):
        target = place_of(read_interpreter(interpreter, confinement).key)
        if make and not target.is_dir():
            _make(interpreter, confinement, target)
        return target if target.is_dir() else None
    return None


def place_of(key: str) -> Path:
    """The folder for an interpreter with what is installed in it; ToolMissingError where there is no C++ compiler."""
    folder = user_cache() / "headers"
    folder.mkdir(parents=True, exist_ok=True)
    facts = [key, cxx_compiler(folder).version, cpu_model()]
    return folder / hashlib.sha256("\0".join(facts).encode()).hexdigest()


def lay_out(folder: Path, temp: Path) -> None:
    """Puts the headers where a new child's torch looks for them; temp: its temporary folder."""
    os.utime(folder)
    headers = temp / _HEADERS
    headers.mkdir(parents=True)
    for header in (folder / _HEADERS).iterdir():
        (headers / header.name).symlink_to(header)
    shutil.copytree(folder / _PROBES, temp / _PROBES, dirs_exist_ok=True)


def _make(interpreter: str, confinement: Confinement, target: Path) -> None:
    """Compiles something, and keeps what this leaves. OSError where it fails."""
    with ended(confinement, [interpreter, "-P", "-c", _COMPILE], {}, _SECONDS) as folder:
        # A compiler that was killed may leave half a file.
        read_regular(folder, _DONE, 1)
        found = [pair for part in (_HEADERS, _PROBES) for pair in walk_regular(folder / part, _DEPTH, _LIMIT_FILES)]
        names = [path.relative_to(folder) for path, _ in found if path.suffix != _LOCK]
        keep(folder, {name: name for name in names}, target, _LIMIT_BYTES)
    for unused in target.parent.iterdir():
        if unused.is_dir() and unused.stat().st_mtime < time.time() - _KEPT_SECONDS:
            shutil.rmtree(unused, ignore_errors=True)
