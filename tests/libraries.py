"""Compiles the operators' libraries for the CPU as tests load them: `python -m tests.libraries`.

They are optimized less than those that ship, which takes half as long; `make nightly` tests the code that ships.
torch's headers, which would take a third more, are compiled once for all.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from warpwatch import _toolchain, native
from warpwatch.settings import load_settings

SOURCES = Path(__file__).parent.parent / "csrc"
HEADERS = "library.h", "ops.h", "tensor.h"
QUICK = "-O1"
"""Comes after the flags of those that ship, and overrides their level."""


def build_cache() -> Path:
    """Where libraries lie: their names contain a hash of their sources and flags, so that none is stale."""
    folder = load_settings().home / "builds"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def quick_flags() -> Iterator[None]:
    """Within, builds optimize less and take torch's headers as they were compiled first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXXFLAGS", f"{os.environ.get('CXXFLAGS', '')} {QUICK} -include {_precompiled()}")
        yield


def _precompiled() -> Path:
    """A header with those of torch, in a folder for this torch, this compiler and these flags."""
    torch, compiler = _toolchain.torch(), _toolchain.cxx_compiler(build_cache())
    command = [compiler.path, *native.CXX_FLAGS, QUICK, "-isystem", str(torch.include), "-x", "c++-header"]
    inputs = json.dumps([torch.version, compiler.version, _toolchain.cpu_model(), command])
    folder = build_cache().parent / "headers" / hashlib.sha256(inputs.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    header = folder / "torch.h"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not header.exists():
            unfinished = folder / "unfinished.h"
            unfinished.write_text("".join(f"#include <torch/csrc/stable/{name}>\n" for name in HEADERS))
            subprocess.run([*command, str(unfinished), "-o", f"{header}.gch"], check=True)
            unfinished.rename(header)
    return header


def main() -> int:
    with quick_flags():
        native.configure(SOURCES, build_cache(), "cpu", fingerprints=False)
        names = native.operators()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            built = dict(zip(names, pool.map(native.build, names), strict=True))
    for name, library in built.items():
        if library.status != "ok":
            print(f"{name}: {library.log}", flush=True)
    print(f"libraries: {sum(library.status == 'ok' for library in built.values())} of {len(built)} are built")
    return 0 if built and all(library.status == "ok" for library in built.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
