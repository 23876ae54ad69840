"""Keeps persisting lines out of the L2 cache: data that stays there would make samples on cold data warm.

A process may set part of the L2 aside for lines that other data does not replace, and choose by an access policy of a
stream which addresses they hold. Flushing the cache leaves them, and the captured kernels of a graph keep the policy.
So nothing is set aside from the start, and a variant that leaves either setting behind is named. Code that takes both
back before it returns is no cheat: with nothing set aside, no line persists.

`cuCtxResetPersistingL2Cache` would be the other way. After it each launch takes an H200 0.7 µs longer, until another
process has had the device: short kernels were 31 % slower, and identical code by turns 16 % slower and faster.
"""

from __future__ import annotations

import ctypes

import torch

from warpwatch.contract.words import Fault

from ..driver import cuda_driver
from ..failures import WrongResultError

SET_ASIDE = "the part of the L2 set aside for persisting lines"
POLICY = "the access policy of its stream"
_PERSISTING_L2_BYTES = 6
"""CU_LIMIT_PERSISTING_L2_CACHE_SIZE."""
_ACCESS_POLICY = 1
"""CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW."""


class AccessWindow(ctypes.Structure):
    """CUaccessPolicyWindow, in a union of 64 bytes."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("hit_ratio", ctypes.c_float),
        ("hit", ctypes.c_int),
        ("miss", ctypes.c_int),
        ("rest", ctypes.c_byte * 32),
    )


_own_bytes: list[int] = []
"""Bytes of the L2 that are set aside before any code of the commit runs: none, where the driver can take back what it
sets aside by itself. Empty where they cannot be read."""


def read_set_aside() -> int:
    """Bytes of the L2 that are set aside since the first call, which takes back what was; 0 where driver, card or
    context is missing."""
    driver, size = cuda_driver(), ctypes.c_size_t()
    if driver is None or driver.cuCtxGetLimit(ctypes.byref(size), _PERSISTING_L2_BYTES) != 0:
        return 0
    if not _own_bytes:
        is_taken_back = driver.cuCtxSetLimit(_PERSISTING_L2_BYTES, ctypes.c_size_t(0)) == 0
        _own_bytes.append(0 if is_taken_back else size.value)
        return 0
    return size.value - _own_bytes[0]


def write_set_aside(more: int) -> None:
    """Sets aside so many bytes more than after the first call of `read_set_aside`."""
    driver = cuda_driver()
    if driver is not None and _own_bytes:
        driver.cuCtxSetLimit(_PERSISTING_L2_BYTES, ctypes.c_size_t(_own_bytes[0] + more))


def read_policy() -> int:
    """Bytes that the access policy of the current stream covers."""
    driver, policy = cuda_driver(), AccessWindow()
    if driver is None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    driver.cuStreamGetAttribute(_current_stream(), _ACCESS_POLICY, ctypes.byref(policy))
    return int(policy.bytes)


def write_policy(covered: int) -> None:
    """Takes the access policy of the current stream back. The harness sets none, so there is none to restore."""
    driver = cuda_driver()
    if driver is not None and not covered:
        driver.cuStreamSetAttribute(_current_stream(), _ACCESS_POLICY, ctypes.byref(AccessWindow()))


def _current_stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def expect_nothing_set_aside() -> None:
    """Raises WrongResultError where a part of the L2 is set aside, after it has set that back."""
    more = read_set_aside()
    if more:
        write_set_aside(0)
        message = f"The variant changes settings of the process: {SET_ASIDE} by {more} bytes"
        raise WrongResultError(message, Fault.CHANGED_SETTING, SET_ASIDE)
