"""Measures how much the oracle moves when numbers change in their last bit.

Right results may be far from the oracle for two reasons, which no error of the result tells from a fault:

- Terms cancel. The gradient of a layer norm over one number is exactly zero, and honest code returns the rounding
  errors of the terms that cancel. The oracle is computed again with rounding noise on every intermediate result. How
  far it moves, over the size of the noise, is the size of the terms.
- More than one result is right. At a tie, the last bit of an input decides which element gets the gradient. The
  oracle is computed for inputs that are moved by their last bit, so that no two elements stay equal. Whatever lies
  between these results is right.

This takes six more runs of the oracle, so it is measured only for results that are outside the usual tolerance.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from .problem import CaseData, CaseProblem, has_overlap

_NOISE_SEEDS = (11, 12)
_LARGER = 4.0
_SMOOTH = (2.0, 8.0)
"""Noise of four times the size moves a smooth function about four times as far, and a jump as far as before."""
_STEP, _STEP_F64 = 2.0**-24, 2.0**-40
"""The size of the noise: half the last bit of float32, in which results of every precision but f64 are summed. The
oracle itself is no more exact than f64, so its noise is larger and what it moves is scaled down."""
_DYNAMO = "torch._dynamo"


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Of one tensor. scale: norm of the terms behind it, those that cancel included. low, high: the range of every
    element for inputs that differ in the last bit."""

    scale: float
    low: Tensor
    high: Tensor


def measure_sensitivity(problem: CaseProblem, data: CaseData, oracle: dict[str, Tensor]) -> dict[str, Sensitivity]:
    """The sensitivity of every tensor of `oracle`, which belongs to `data`; empty where the reference cannot run so."""
    step = _step(problem)
    try:
        scales = [_noise_scale(problem, data, oracle, step, seed) for seed in _NOISE_SEEDS]
        moved = [problem.oracle(other) for other in moved_inputs(problem, data)]
    except (RuntimeError, ValueError):
        # A number that moved may leave the domain, such as a matrix that is no longer positive definite.
        return {}
    return {
        name: Sensitivity(max(scale[name] for scale in scales), *_range(tensor, [other[name] for other in moved]))
        for name, tensor in oracle.items()
    }


def disturbed_oracle(problem: CaseProblem, data: CaseData, seed: int) -> dict[str, Tensor]:
    """The oracle with rounding noise on every intermediate result."""
    return _noisy_oracle(problem, data, _step(problem), seed)


def moved_inputs(problem: CaseProblem, data: CaseData) -> list[CaseData]:
    """The data in float64, moved by its last bit in two opposite ways."""
    return [_moved(data, sign * _step(problem)) for sign in (1.0, -1.0)]


def _step(problem: CaseProblem) -> float:
    return _STEP_F64 if problem.case.precision == "f64" else _STEP


class RoundingNoise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, changes every floating-point result of an operator by plus or minus `step` of its size.

    Operators that torch can decompose, such as the gradient of a layer norm, are run in parts.
    """

    def __init__(self, step: float, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Importing it takes 0.4 s, which most children never need.
        from torch._decomp import decomposition_table

        self._step = step
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._decompositions = decomposition_table

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from importing torch._dynamo, which takes seconds, at the first call."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if not isinstance(func, OpOverload) or _shares_memory(func):
            return func(*args, **named)
        if func in self._decompositions:
            # The terms of a fused operator cancel inside it. Some decompositions do not take all arguments.
            with suppress(RuntimeError, TypeError, ValueError, NotImplementedError, AssertionError), self:
                return self._decompositions[func](*args, **named)
        result = func(*args, **named)
        if isinstance(result, Tensor):
            return self._disturbed(result)
        if isinstance(result, (tuple, list)):
            return type(result)(self._disturbed(item) for item in result)
        return result

    def _disturbed(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point or value.layout is not torch.strided:
            return value
        if value.device not in self._generators:
            self._generators[value.device] = torch.Generator(value.device).manual_seed(self._seed)
        generator = self._generators[value.device]
        signs = torch.randint(0, 2, value.shape, generator=generator, device=value.device, dtype=torch.int8)
        return value * (1 + self._step * (2.0 * signs - 1).to(value.dtype))


def _noisy_oracle(problem: CaseProblem, data: CaseData, step: float, seed: int) -> dict[str, Tensor]:
    with RoundingNoise(step, seed), _no_import_of_dynamo():
        return problem.oracle(data)


class _DynamoOnDemand(ModuleType):
    """Stands in for torch._dynamo, and gives way to it as soon as more than `disable` is asked of it."""

    def __init__(self) -> None:
        super().__init__(_DYNAMO)
        self.disabled: list[Any] = []

    def disable(self, fn: Any = None, *args: Any, wrapping: bool = True, **options: Any) -> Any:
        """torch asks so once for each function that no compiled code should trace."""
        if wrapping:
            return self._replace().disable(fn, *args, wrapping=wrapping, **options)
        self.disabled.append(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replace(), name)

    def _replace(self) -> Any:
        self.remove()
        return importlib.import_module(_DYNAMO)

    def remove(self) -> None:
        if sys.modules.get(_DYNAMO) is self:
            del sys.modules[_DYNAMO]
        if vars(torch).get("_dynamo") is self:
            del torch._dynamo


@contextmanager
def _no_import_of_dynamo() -> Iterator[None]:
    """Decompositions are wrapped in torch._dynamo.disable at their first call. Importing it takes seconds, and nothing
    is compiled here."""
    if _DYNAMO in sys.modules:
        yield
        return
    stand_in = _DynamoOnDemand()
    sys.modules[_DYNAMO] = stand_in
    torch._dynamo = stand_in
    try:
        yield
    finally:
        stand_in.remove()
        # What is compiled later must not trace these functions: torch asks again.
        for function in stand_in.disabled:
            vars(function).pop("__dynamo_disable", None)


def _shares_memory(func: OpOverload[..., Any]) -> bool:
    """Whether results of the operator are views, or arguments that it changed."""
    schema = func._schema
    return any(value.alias_info is not None for value in (*schema.arguments, *schema.returns))


def _noise_scale(
    problem: CaseProblem, data: CaseData, oracle: dict[str, Tensor], step: float, seed: int
) -> dict[str, float]:
    """The norm of the terms behind every tensor, by one draw of noise in two sizes; elements that jump do not count."""
    small = _noisy_oracle(problem, data, step, seed)
    large = _noisy_oracle(problem, data, _LARGER * step, seed)
    scales = {}
    for name, tensor in oracle.items():
        if not tensor.dtype.is_floating_point or tensor.shape != large[name].shape:
            scales[name] = 0.0
            continue
        near, far = ((other[name].double() - tensor).abs_() for other in (small, large))
        smooth = (far >= _SMOOTH[0] * near) & (far <= _SMOOTH[1] * near) & far.isfinite()
        scales[name] = float(torch.linalg.vector_norm(torch.where(smooth, far, 0.0))) / (_LARGER * step)
    return scales


def _moved(data: CaseData, step: float) -> CaseData:
    """The data in float64 with every number moved by up to `step` of its size, further the later it stands.

    Neighbouring tensors move in opposite directions, so that equal numbers differ in one tensor and between two.
    """
    direction = [step]

    def move(tensor: Tensor) -> Tensor:
        if not tensor.dtype.is_floating_point or has_overlap(tensor) or tensor.layout is not torch.strided:
            return tensor.detach().clone()
        direction[0] = -direction[0]
        wide = tensor.detach().double()
        places = torch.linspace(0.5, 1.0, wide.numel(), dtype=torch.float64, device=wide.device).reshape(wide.shape)
        # Zeros have a last bit, too: without it, the two zeros of a tie would stay equal.
        size = wide.abs() + torch.finfo(torch.float32).tiny
        return wide + direction[0] * places * size

    return data.map(move)


def _range(tensor: Tensor, moved: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The smallest and largest of each element. Where truth values are concerned, only the oracle's is right."""
    low = high = tensor
    if tensor.dtype == torch.bool:
        return low, high
    for other in moved:
        if other.shape == tensor.shape:
            usable = torch.where(other.isfinite(), other, tensor)
            low, high = torch.minimum(low, usable), torch.maximum(high, usable)
    return low, high
