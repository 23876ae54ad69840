"""Byte code of an interpreter's packages, for interpreters whose packages were installed without.

Python compiles a module without byte code at every import, and a child cannot store the result, because it writes to no
folder that outlives it: `import torch` takes 3 s longer in each child. So the parent once imports what children import,
in a jail of its own that holds no code of any commit, and stores the byte code. Children read it through
PYTHONPYCACHEPREFIX from a folder that they cannot write to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from warpwatch import __version__
from warpwatch.worker.jailed import ended, keep
from warpwatch.worker.sandbox import BOOTSTRAP, BYTECODE_VARIABLE, Confinement
from warpwatch.worker.trees import Limits

FOLDER = "bytecode"
"""Folder of the home folder with one folder per interpreter and set of installed packages."""
KEPT = 8
"""Folders that are kept, the least recently used are removed first."""
_LOOK_SECONDS = 60.0
_IMPORT_SECONDS = 300.0
_LIMIT_BYTES = 64 * 2**20
"""Size of one file."""
_LIMITS = Limits(depth=50, files=50_000)
_LOOK = """
import importlib.metadata, importlib.util, json, os, subprocess, sys
packages = sorted(f"{d.metadata['Name']} {d.version}" for d in importlib.metadata.distributions())
torch = importlib.util.find_spec("torch")
origin = torch.origin if torch else None
compiled = origin is None or os.path.exists(importlib.util.cache_from_source(origin))
tools = []
try:
    version = subprocess.run([os.environ.get("CXX", "g++"), "--version"], capture_output=True, text=True, check=True)
    names = ("model name", "flags", "CPU part", "Features")
    with open("/proc/cpuinfo") as file:
        tools = [version.stdout, *sorted({line for line in file if line.startswith(names)})]
except (OSError, subprocess.SubprocessError):
    pass
with open(os.path.join(os.environ["TMPDIR"], "look.json"), "w") as file:
    json.dump({"packages": [sys.version, sys.prefix, *packages], "compiled": compiled, "tools": tools}, file)
"""


@dataclass(frozen=True, slots=True)
class InterpreterState:
    """An interpreter and what is installed in it.

    key: changes when a package is installed, updated or removed. is_compiled: whether its torch has byte code. tools:
    the C++ compiler that it calls and the CPU; empty where there is no compiler.
    """

    key: str
    is_compiled: bool
    tools: tuple[str, ...] = ()


@cache
def read_interpreter(interpreter: str, confinement: Confinement) -> InterpreterState:
    """The state of the interpreter at this path, read once per process. A program that is no Python that Warpwatch can
    use counts as compiled."""
    with ended(confinement, [interpreter, "-P", "-c", _LOOK], {}, _LOOK_SECONDS) as left:
        try:
            reply = json.loads(left.read("look.json", _LIMIT_BYTES))
            facts, is_compiled = [str(fact) for fact in reply["packages"]], bool(reply["compiled"])
            tools = tuple(str(tool) for tool in reply["tools"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            facts, is_compiled, tools = [], True, ()
    digest = hashlib.sha256(json.dumps([interpreter, __version__, *facts]).encode()).hexdigest()
    return InterpreterState(digest, is_compiled, tools)


@cache
def prepare(home: Path, interpreter: str, confinement: Confinement) -> Path | None:
    """The folder with the byte code of this interpreter's packages, which is made unless it exists.

    None where the packages have theirs, and where the sandbox would let a child write to the folder.
    """
    if not confinement.has_namespaces:
        return None
    state = read_interpreter(interpreter, confinement)
    if state.is_compiled:
        return None
    target = home / FOLDER / state.key
    with contextlib.suppress(OSError):
        if not target.is_dir():
            words = [interpreter, "-P", str(BOOTSTRAP), "--import", "--root", "/", "--libraries", "/"]
            with ended(confinement, words, {BYTECODE_VARIABLE: FOLDER}, _IMPORT_SECONDS) as left:
                names = [entry.name for entry in left.walk(_LIMITS, FOLDER) if entry.is_file]
                keep(left, {name: name.removeprefix(f"{FOLDER}/") for name in names}, target, _LIMIT_BYTES)
            for unused in sorted(target.parent.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT]:
                shutil.rmtree(unused, ignore_errors=True)
        os.utime(target)
        return target
    return None
