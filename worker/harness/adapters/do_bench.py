"""triton.testing.do_bench, and torch.allclose with the tolerance of Triton's tutorial on matmul. Needs a GPU."""

from __future__ import annotations

import importlib

import torch

from . import Function, Inputs

_SEED, _TOLERANCE = 0, 1e-2


def check(reference: Function, candidate: Function, inputs: Inputs) -> bool:
    tensors = inputs(_SEED)
    return torch.allclose(candidate(*tensors), reference(*tensors), atol=_TOLERANCE, rtol=0)


def time(candidate: Function, inputs: Inputs) -> float:
    tensors = inputs(_SEED)
    testing = importlib.import_module("triton.testing")
    return float(testing.do_bench(lambda: candidate(*tensors))) / 1e3
