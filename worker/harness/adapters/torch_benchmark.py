"""torch.utils.benchmark, and torch.allclose with the tolerance of Triton's tutorial on matmul: what a script does."""

from __future__ import annotations

from torch.utils.benchmark import Timer

from . import Function, Inputs
from .do_bench import _SEED, check

__all__ = ["check", "time"]
_SECONDS = 0.1


def time(candidate: Function, inputs: Inputs) -> float:
    tensors = inputs(_SEED)
    timer = Timer("candidate(*tensors)", globals={"candidate": candidate, "tensors": tensors})
    return float(timer.blocked_autorange(min_run_time=_SECONDS).median)
