"""torch's C++ headers, precompiled once for all children that measure on a CPU.

Before torch.compile makes its first kernel for a CPU, it precompiles its headers into the temporary folder and finds
out what the CPU can do: 8 to 20 s of work for kernels of 1 s each. A child's temporary folder vanishes with it, and
what a commit's code has written must not reach another commit. So a jail of its own, which holds no code of any commit,
compiles one kernel, and children read the headers that this leaves from a folder that they cannot write to. That is
done ahead of operators that call torch.compile, and once a child had to make its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from warpwatch.settings import user_cache
from warpwatch.worker.bytecode import read_interpreter
from warpwatch.worker.jailed import ended, keep
from warpwatch.worker.sandbox import JIT, USER, Confinement
from warpwatch.worker.trees import Limits, Tree

_KEPT_SECONDS = 30 * 86_400
"""Headers that no child has used for so long are removed, 150 MB each."""
_SECONDS = 300.0
_LIMIT_BYTES = 2**30
_LIMITS = Limits(depth=4, files=1_000)
_HEADERS = f"torchinductor_{USER}/precompiled_headers"
"""Where torch has them in the temporary folder: the path holds the name of the user."""
_PROBES = f"{JIT}/inductor"
_LOCK = ".lock"
"""Of files that torch opens for writing, each child its own."""
_DONE = "done"
_COMPILE = f"""
import os, torch
torch.compile(torch.neg)(torch.ones(1))
open(os.path.join(os.environ["TMPDIR"], "{_DONE}"), "w").close()
"""


@dataclass(slots=True)
class _Made:
    """by_child: whether a child had to precompile its own headers. tried: where they were made for all, or could not
    be."""

    by_child: bool = False
    tried: set[Path] = field(default_factory=set)


_made = _Made()


def learn(temp: Tree) -> None:
    """Looks whether a child that had no headers has made some in its temporary folder, as others would, too."""
    with contextlib.suppress(OSError):
        _made.by_child |= any(entry.name.endswith(".gch") for entry in temp.entries(_HEADERS, _LIMITS.files))


def are_missed() -> bool:
    """Whether a child had to precompile its own."""
    return _made.by_child


def find(interpreter: str, confinement: Confinement) -> Path | None:
    """The folder with the headers for this interpreter's torch; None where there is none, and where the sandbox would
    let a child write to it."""
    place = _place(interpreter, confinement)
    return place if place is not None and place.is_dir() else None


def make(interpreter: str, confinement: Confinement, should_stop: Callable[[], str | None] = lambda: None) -> None:
    """Makes that folder where children could use it, unless it exists. This process tries it once.

    should_stop: as in Reporter.
    """
    place = _place(interpreter, confinement)
    if place is not None and not place.is_dir() and place not in _made.tried:
        _made.tried.add(place)
        with contextlib.suppress(OSError):
            with ended(confinement, [interpreter, "-P", "-c", _COMPILE], {}, _SECONDS, should_stop) as left:
                # A compiler that was killed may leave half a file.
                left.read(_DONE, 1)
                entries = [entry for part in (_HEADERS, _PROBES) for entry in left.walk(_LIMITS, part)]
                names = [entry.name for entry in entries if entry.is_file and not entry.name.endswith(_LOCK)]
                keep(left, {name: name for name in names}, place, _LIMIT_BYTES)
            for unused in place.parent.iterdir():
                if unused.is_dir() and unused.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    shutil.rmtree(unused, ignore_errors=True)


def _place(interpreter: str, confinement: Confinement) -> Path | None:
    """The folder for an interpreter with what is installed in it, its compiler and the CPU; None without a compiler."""
    if not confinement.has_namespaces or confinement.image is not None:
        return None
    with contextlib.suppress(OSError):
        state = read_interpreter(interpreter, confinement)
        digest = hashlib.sha256("\0".join([state.key, *state.tools]).encode()).hexdigest()
        return user_cache() / "headers" / digest if state.tools else None
    return None


def lay_out(folder: Path, temp: Tree) -> None:
    """Puts the headers where a new child's torch looks for them; temp: its temporary folder."""
    os.utime(folder)
    made = Tree(folder)
    for header in made.entries(_HEADERS):
        temp.make_link(header.name, str(folder / header.name))
    made.copy_all(_PROBES, temp, _PROBES, _LIMITS)
