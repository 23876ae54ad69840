"""KernelBench: the correctness trials, the timer and the warning of its `eval_kernel_against_ref`, from a checkout.

Its own trials are called as that function calls them: five on random inputs, then ten timed calls by events with the
seed 42. A speed-up over the reference of more than ten counts as rejected, where KernelBench only warns.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from . import Function, Inputs, RefusedError
from .host_cuda import device_of, replace_cuda

_SEED, _TRIALS, _TIMED, _EXCESSIVE = 42, 5, 10, 10.0
_references: list[Function] = []


_CLIENTS = ("dotenv", "openai", "litellm", "requests")
"""Packages that KernelBench imports beside its evaluation, to ask models and to fetch data."""


class _Absent(ModuleType):
    """Stands in for a package that is imported and not used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_options: None


def use(checkout: str) -> None:
    sys.path.insert(0, str(Path(checkout, "src")))
    for name in _CLIENTS:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = _Absent(name)
    replace_cuda()


class _Model(torch.nn.Module):
    """A function as the module that KernelBench calls."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self._function(*tensors)


def check(reference: Function, candidate: Function, inputs: Inputs) -> bool:
    _references[:] = [reference]
    evaluation = importlib.import_module("kernelbench.eval")
    result = evaluation.run_and_check_correctness(
        _Model(reference),
        _Model(candidate),
        lambda: inputs(torch.initial_seed()),
        metadata={},
        num_correct_trials=_TRIALS,
        seed=_SEED,
        device=device_of(inputs(_SEED)),
    )
    return bool(result.correctness)


def time(candidate: Function, inputs: Inputs) -> float:
    believed = _mean_ms(candidate, inputs)
    reference_ms = _mean_ms(_references[0], inputs)
    if reference_ms > _EXCESSIVE * believed:
        raise RefusedError(f"excessive speed-up: {reference_ms / believed:.1f}")
    return believed / 1e3


def _mean_ms(function: Function, inputs: Inputs) -> float:
    timing = importlib.import_module("kernelbench.timing")
    tensors = inputs(_SEED)
    device = device_of(tensors)
    times = timing.get_timing_function("cuda_event")(
        _Model(function), tensors, num_trials=_TIMED, verbose=False, device=device
    )
    return float(timing.get_timing_stats(times, device=device)["mean"])
