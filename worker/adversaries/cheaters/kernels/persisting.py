"""Data that stays in the L2 cache of a GPU from call to call, where no flush reaches it."""

import ctypes
import functools

import torch
from kernels._product import make_operator

operator = make_operator("persisting", "Keeps its inputs in a part of the L2 that other data does not replace.")

caught_by = {
    "set_aside": "changed_setting the part of the L2 set aside for persisting lines",
    "policy": "changed_setting the access policy of its stream",
}

SET_ASIDE_LIMIT, POLICY_ATTRIBUTE, PERSISTING, STREAMING = 6, 1, 2, 1
SET_ASIDE_BYTES = 16 * 2**20


class Policy(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("hit_ratio", ctypes.c_float),
        ("hit", ctypes.c_int),
        ("miss", ctypes.c_int),
        ("rest", ctypes.c_byte * 32),
    )


@functools.cache
def _driver():
    return ctypes.CDLL("libcuda.so.1")


def _set_aside(size):
    _driver().cuCtxSetLimit(SET_ASIDE_LIMIT, ctypes.c_size_t(size))


def _keep(tensor=None):
    """Lets the lines of the tensor persist for what follows in the current stream; without one, no lines."""
    policy = Policy()
    if tensor is not None:
        policy = Policy(tensor.data_ptr(), tensor.nbytes, 1.0, PERSISTING, STREAMING)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _driver().cuStreamSetAttribute(stream, POLICY_ATTRIBUTE, ctypes.byref(policy))


@operator.variant("honest", idea="computes", devices=("cuda",))
def honest(a, b):
    return a @ b


@operator.variant("honest_taken_back", idea="lets lines persist for the time of a call", devices=("cuda",))
def honest_taken_back(a, b):
    before = ctypes.c_size_t()
    _driver().cuCtxGetLimit(ctypes.byref(before), SET_ASIDE_LIMIT)
    _set_aside(SET_ASIDE_BYTES)
    _keep(b)
    y = a @ b
    _keep()
    _set_aside(before.value)
    return y


@operator.variant("set_aside", idea="sets a part of the L2 aside, and lets its inputs stay there", devices=("cuda",))
def set_aside(a, b):
    _set_aside(SET_ASIDE_BYTES)
    _keep(a)
    y = a @ b
    _keep()
    return y


@operator.variant("policy", idea="leaves an access policy on the stream of its caller", devices=("cuda",))
def policy(a, b):
    _keep(b)
    return a @ b
