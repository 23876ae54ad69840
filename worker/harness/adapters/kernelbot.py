"""kernelbot: `eval.py` of gpu-mode/reference-kernels as its leaderboard runs it, from a checkout.

The problem is laid out as a task is: modules `reference` and `submission`, and `eval.py` of problems/pmpp_v2. Every
timed call has new inputs and is checked (`recheck`), with the tolerance that most of the tasks name.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from . import Function, Inputs, RefusedError
from .host_cuda import device_of, replace_cuda

_SEED, _TOLERANCE, _MOST_CALLS = 42, 1e-3, 50
_LONGEST_NS = 1e9
_FLUSHED_BYTES = 64 * 2**20


def use(checkout: str) -> None:
    sys.path.insert(0, str(Path(checkout, "problems", "pmpp_v2")))
    replace_cuda()


def check(reference: Function, candidate: Function, inputs: Inputs) -> bool:
    evaluation = _lay_out(reference, candidate, inputs)
    good, _message = evaluation._run_single_test(evaluation.TestCase(args={"seed": _SEED}, spec=""))
    return bool(good)


def time(_candidate: Function, _inputs: Inputs) -> float:
    evaluation = importlib.import_module("eval")
    test = evaluation.TestCase(args={"seed": _SEED}, spec="")
    result = evaluation._run_single_benchmark(test, True, _MOST_CALLS, _LONGEST_NS)
    if not isinstance(result, evaluation.Stats):
        raise RefusedError(str(result))
    return float(result.mean) / 1e9


def _lay_out(reference: Function, candidate: Function, inputs: Inputs) -> Any:
    """The module `eval` of a task with this reference, this submission and these inputs."""
    utilities = importlib.import_module("utils")
    task, submission = ModuleType("reference"), ModuleType("submission")
    task.__dict__["generate_input"] = lambda seed: tuple(inputs(seed))
    match = utilities.make_match_reference(lambda data: reference(*data), rtol=_TOLERANCE, atol=_TOLERANCE)
    task.__dict__["check_implementation"] = match
    submission.__dict__["custom_kernel"] = lambda data: candidate(*data)
    sys.modules |= {"reference": task, "submission": submission}
    evaluation = importlib.import_module("eval")
    if device_of(inputs(_SEED)).type == "cpu":
        # Its own fills memory of a GPU.
        evaluation.__dict__["clear_l2_cache"] = lambda: torch.empty(_FLUSHED_BYTES, dtype=torch.uint8).fill_(1)
    return evaluation
