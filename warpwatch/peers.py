"""Tests whether Triton and torch.compile can run here. Each test returns a reason or None, as Variant.unsupported."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

from warpwatch.operator import Case, DeviceKind


def triton_unsupported(_case: Case, device: DeviceKind) -> str | None:
    """Why a Triton kernel cannot run; None when it can. Timings of its CPU interpreter would be meaningless."""
    if device != "cuda":
        return "triton compiles only for GPUs"
    return None if _installed("triton") else "triton is not installed: pip install triton"


def triton_interpreted() -> bool:
    """Whether Triton kernels run in its interpreter. It cannot multiply 16-bit matrices, so kernels widen them."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def compile_unsupported(_case: Case, device: DeviceKind) -> str | None:
    """Why torch.compile cannot run; None when it can. It needs Triton on a GPU, and C++ with Python.h on a CPU."""
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
