"""Whether the compilers that operators are compared with can run here.

Each answer is a reason, or None, as Variant.unsupported wants it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

from warpwatch.operator import Case, DeviceKind


def triton_unsupported(_case: Case, device: DeviceKind) -> str | None:
    """Why a Triton kernel cannot run: its own interpreter on the CPU would measure nothing anybody runs."""
    if device != "cuda":
        return "triton compiles for GPUs only"
    return None if _installed("triton") else "triton is not installed: pip install triton"


def triton_interpreted() -> bool:
    """Whether Triton kernels run in its interpreter, which cannot multiply matrices of 16-bit numbers: a kernel widens
    them for it."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def compile_unsupported(_case: Case, device: DeviceKind) -> str | None:
    """Why torch.compile cannot run: it writes Triton on a GPU and C++ that includes Python.h on a CPU."""
    if device == "cuda":
        return None if _installed("triton") else "torch.compile needs triton on a GPU: pip install triton"
    if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++")):
        return "torch.compile needs a C++ compiler: install g++"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "torch.compile needs Python's headers: install python3-dev, or Python from uv or conda"
    return None


@functools.cache
def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
