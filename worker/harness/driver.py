"""NVIDIA's driver, for what torch does not offer."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def cuda_driver() -> ctypes.CDLL | None:
    """None on a machine without a driver."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
