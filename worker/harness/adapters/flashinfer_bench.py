"""flashinfer-bench, the package: correctness and performance by its DefaultEvaluator with the default settings.

On a CPU, where to flush the cache takes long, it times 10 calls per set of inputs instead of 50.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from . import Function, Inputs, RefusedError
from .host_cuda import device_of, replace_cuda

_SEEDS = (0, 1, 2)


def check(reference: Function, candidate: Function, inputs: Inputs) -> bool:
    replace_cuda()
    drawn = [inputs(seed) for seed in _SEEDS]
    outputs = [[reference(*tensors)] for tensors in drawn]
    data = importlib.import_module("flashinfer_bench.data")
    definition = _definition(data, drawn[0], outputs[0][0])
    _, failure = _evaluator().check_correctness(
        definition, _runnable(candidate), drawn, outputs, _settings(drawn), "", str(device_of(drawn[0]))
    )
    return failure is None


def time(candidate: Function, inputs: Inputs) -> float:
    drawn = [inputs(seed) for seed in _SEEDS]
    performance, failure = _evaluator().eval_performance(
        None, _runnable(candidate), drawn, 0.0, _settings(drawn), "", str(device_of(drawn[0]))
    )
    if failure is not None:
        raise RefusedError(str(failure.status))
    return float(performance.latency_ms) / 1e3


def _evaluator() -> Any:
    return importlib.import_module("flashinfer_bench.bench.evaluators.default").DefaultEvaluator


def _settings(drawn: list[list[Tensor]]) -> Any:
    fewer = {"warmup_runs": 2, "iterations": 10} if device_of(drawn[0]).type == "cpu" else {}
    return importlib.import_module("flashinfer_bench.bench.config").BenchmarkConfig(**fewer)


def _runnable(function: Function) -> Any:
    module = importlib.import_module("flashinfer_bench.compile.runnable")
    names = {"build_type": "python", "definition_name": "exam", "solution_name": "candidate"}
    return module.Runnable(function, module.RunnableMetadata(**names, destination_passing_style=False))


def _definition(data: Any, tensors: list[Tensor], output: Tensor) -> Any:
    """The definition of a problem with these inputs and this output; every axis has one length."""
    axes: dict[str, Any] = {}

    def spec(name: str, tensor: Tensor) -> dict[str, Any]:
        names = [f"{name}_{index}" for index in range(tensor.dim())]
        axes.update({axis: {"type": "const", "value": size} for axis, size in zip(names, tensor.shape, strict=True)})
        return {"shape": names, "dtype": str(tensor.dtype).removeprefix("torch.")}

    return data.Definition(
        name="exam",
        op_type="exam",
        inputs={f"x{index}": spec(f"x{index}", tensor) for index, tensor in enumerate(tensors)},
        outputs={"y": spec("y", output)},
        axes=axes,
        reference="def run(*inputs): ...",
    )
