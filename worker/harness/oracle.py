"""Judges results: the float64 oracle of one set of inputs, and the largest error allowed around it.

The tolerance on the relative (Frobenius) error is `2 · (eps + eps_sum · √depth)`: one rounding of the result, plus a
sum of `depth` terms whose independent rounding errors grow with the square root. eps belongs to the case's precision.
eps_sum belongs to the expected accumulator: float32 for tf32 and every 16-bit precision.

torch's own result in that precision (the operator's `by_torch`, else its reference) may be less exact, because of
several rounded steps or cancellation. Then four times its error is allowed, up to 16 times the formula. In f64 the
oracle is no more exact than the result, so the error of a float32 run is used, scaled down.

A result outside this tolerance is judged again with the sensitivity of the oracle: how much it moves when numbers
change in their last bit. The rounding errors of sums then belong to the size of their terms, even if the terms cancel,
and an element may be anything that the last bit of an input can make of it. Right results may be far from the oracle
for two reasons, which no error of the result tells from a fault:

- Terms cancel. The gradient of a layer norm over one number is exactly zero, and honest code returns the rounding
  errors of the terms that cancel. The oracle is computed again with rounding noise on every intermediate result. How
  far it moves, over the size of the noise, is the size of the terms.
- More than one result is right. At a tie, the last bit of an input decides which element gets the gradient. The
  oracle is computed for inputs that are moved by their last bit, so that no two elements stay equal, and for gradients
  once more with those inputs moved up, and down, whose gradients the result makes too large: of several tied elements,
  these are the chosen. Whatever lies between these results is right.

This takes six to ten more runs of the oracle, so it is measured only for results that are outside the usual
tolerance.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from warpwatch.contract.activities import Activity
from warpwatch.contract.measurement import TensorError
from warpwatch.contract.words import Fault

from .codes import CodeJudge
from .dispatch import DispatchMode
from .failures import WrongResultError
from .problem import CaseData, CaseProblem, dtype_name, has_overlap, index_of
from .turns import STOPWATCH


class Oracle:
    """The float64 oracle for `data`, computed once; it can judge any number of results.

    What allows a larger error is computed when a result needs it, or its measures are asked for: first torch's own
    result, then the oracle's sensitivity. redraw: draws `data` again for the latter; the inputs of a large case fit
    into memory only once.
    """

    @STOPWATCH.measure(Activity.ORACLE)
    def __init__(self, problem: CaseProblem, data: CaseData, redraw: Callable[[], CaseData]) -> None:
        self._problem, self._redraw, self._is_measured = problem, redraw, False
        self._data: CaseData | None = data
        oracle = problem.oracle(data)
        outputs = () if problem.records else problem.operator.quantized(problem.case)
        self._codes = CodeJudge(outputs, data.inputs, len(oracle))
        self.expected: dict[str, Expected] = {
            name: expect(tensor, problem.case.precision, problem.depth(name)) for name, tensor in oracle.items()
        }
        self._dtypes = {name: expected_dtype(problem, data, name) for name in oracle}

    def judge(self, results: dict[str, Tensor]) -> list[TensorError]:
        """Every error measure of every tensor; raises WrongResultError for a wrong shape, dtype or device."""
        self._expect_alike(results)
        by_code = self._codes.errors(results, {name: expected.oracle for name, expected in self.expected.items()})
        others = {name: result.detach() for name, result in results.items() if name not in self._codes.names}
        if not others:
            return by_code
        self._measure_torch()
        errors = [compare(name, result, self.expected[name]) for name, result in others.items()]
        for measure in (self._measure_sensitivity, partial(self._measure_choice, results)):
            if all(error.right for error in errors) or not measure():
                return by_code + errors
            errors = [compare(name, result, self.expected[name]) for name, result in others.items()]
        return by_code + errors

    def is_right(self, name: str, result: Tensor) -> bool:
        """Whether `result` is right; measures what allows a larger error if it is outside the usual tolerance."""
        result = result.detach()
        return (
            is_right(result, self.expected[name])
            or (self._measure_torch() and is_right(result, self.expected[name]))
            or (self._measure_sensitivity() and is_right(result, self.expected[name]))
            or (self._measure_choice({name: result}) and is_right(result, self.expected[name]))
        )

    def find_wrong(self, results: dict[str, Tensor]) -> str | None:
        """One line on the first wrong tensor; None when all are right, which is known sooner than all errors are.
        Raises like `judge`."""
        name = self._find_wrong(results)
        return None if name is None else self._explain(name, results)

    def expect(self, results: dict[str, Tensor]) -> None:
        """Raises WrongResultError with the tensor and its worst index unless all `results` are right."""
        name = self._find_wrong(results)
        if name is not None:
            raise WrongResultError(self._explain(name, results), Fault.WRONG_VALUES, name)

    def explain_first(self, errors: list[TensorError], results: dict[str, Tensor]) -> str | None:
        """One line on the first wrong tensor; None when all are right."""
        wrong = next((error for error in errors if not error.right), None)
        if wrong is None:
            return None
        by_code = self._codes.faults(results)
        return by_code[wrong.name].message if wrong.name in by_code else explain(wrong, results[wrong.name].detach())

    def _find_wrong(self, results: dict[str, Tensor]) -> str | None:
        self._expect_alike(results)
        for name in self._codes.faults(results):
            return name
        others = ((name, result) for name, result in results.items() if name not in self._codes.names)
        return next((name for name, result in others if not self.is_right(name, result)), None)

    def _explain(self, name: str, results: dict[str, Tensor]) -> str:
        if name in self._codes.names:
            return self._codes.faults(results)[name].message
        result = results[name].detach()
        return explain(compare(name, result, self.expected[name]), result)

    @STOPWATCH.measure(Activity.ORACLE)
    def _measure_torch(self) -> bool:
        """Lets torch's own result, once, say how exact a result can be; whether it did so now."""
        if self._data is None:
            return False
        by_torch, self._data = self._problem.own_precision(self._data), None
        for name, tensor in (by_torch or {}).items():
            self.expected[name] = with_torch(self.expected[name], tensor)
        return by_torch is not None

    @STOPWATCH.measure(Activity.ORACLE)
    def _measure_sensitivity(self) -> bool:
        """Measures the sensitivity of every tensor, once; whether there is one. Whole numbers have none."""
        if not self._is_measured and self._problem.case.precision != "i32":
            oracle = {name: expected.oracle for name, expected in self.expected.items()}
            for name, sensitivity in measure_sensitivity(self._problem, self._redraw(), oracle).items():
                self.expected[name] = replace(self.expected[name], sensitivity=sensitivity)
        self._is_measured = True
        return any(expected.sensitivity is not None for expected in self.expected.values())

    @STOPWATCH.measure(Activity.ORACLE)
    def _measure_choice(self, results: dict[str, Tensor]) -> bool:
        """Lets the inputs whose gradients are larger in `results` than expected win their ties; whether it can."""
        gradients = [name for name in results if name.startswith("grad ")]
        if not gradients or any(expected.sensitivity is None for expected in self.expected.values()):
            return False
        chosen: dict[str, Tensor] = {}
        for name in gradients:
            result = results[name]
            size = result.detach().double().abs().nan_to_num(0.0, 0.0, 0.0)
            size = torch.where(size > self.expected[name].oracle.abs(), size, 0.0)
            chosen[name.removeprefix("grad ")] = size / size.max().clamp(min=torch.finfo(torch.float64).tiny)
        try:
            others = [self._problem.oracle(other) for other in chosen_inputs(self._problem, self._redraw(), chosen)]
        except (RuntimeError, ValueError):
            return False
        for name in gradients:
            expected = self.expected[name]
            assert expected.sensitivity is not None
            borders = [expected.sensitivity.low, expected.sensitivity.high]
            low, high = _range(expected.oracle, [*borders, *(other[name] for other in others)])
            self.expected[name] = replace(expected, sensitivity=replace(expected.sensitivity, low=low, high=high))
        return True

    def _expect_alike(self, results: dict[str, Tensor]) -> None:
        if results.keys() != self.expected.keys():
            message = f"The variant returns {len(results)} tensors, expected {len(self.expected)}"
            raise WrongResultError(message, Fault.WRONG_FORM)
        for name, result in results.items():
            oracle = self.expected[name].oracle
            expect_alike(name, result, oracle.shape, self._dtypes[name], oracle.device)


def expected_dtype(problem: CaseProblem, data: CaseData, name: str) -> torch.dtype:
    """The dtype of a result: an output has that of the reference's output, a gradient that of its input."""
    if name.startswith("grad "):
        return dict(data.tensors())[name.removeprefix("grad ")].dtype
    index = int(name[2:-1]) if name != "y" else 0
    dtype = problem.expected[index][1]
    # Codes of eight bits come as bytes, see CaseProblem.results.
    return torch.uint8 if dtype.is_floating_point and dtype.itemsize == 1 else dtype


EPSILON = {
    "f64": 2.0**-52,
    "f32": 2.0**-23,
    "3xtf32": 2.0**-21,
    "tf32": 2.0**-10,
    "bf16": 2.0**-7,
    "f16": 2.0**-10,
    "i32": 0.0,
}
_SMALLEST_NORMAL = {"f64": -1022, "f32": -126, "3xtf32": -126, "tf32": -126, "bf16": -126, "f16": -14, "i32": 0}
_SMALLEST = {name: 2.0**exponent if exponent else 0.0 for name, exponent in _SMALLEST_NORMAL.items()} | {
    "f16": 2.0**-24
}
"""Below it a result may be zero: the smallest normal number, for f16 the smallest of all, because none is flushed."""
_LARGEST = {"f32": 2.0**128, "3xtf32": 2.0**128, "tf32": 2.0**128, "bf16": 2.0**128, "f16": 65520.0}
"""The smallest number that becomes infinite in the precision."""
_MARGIN = 2.0
_TORCH_MARGIN = 4.0
_LOOSEST = 16.0


def tolerance(precision: str, depth: int, torch_relative: float | None) -> float:
    """The largest relative error that counts as right; integers must be exact.

    depth: terms of the longest sum behind one element. torch_relative: relative error of torch's own result.
    """
    if precision == "i32":
        return 0.0
    accumulator = EPSILON["f64" if precision == "f64" else "f32"]
    base = _MARGIN * (EPSILON[precision] + accumulator * math.sqrt(max(depth, 1)))
    if torch_relative is None or not math.isfinite(torch_relative):
        return base
    return min(max(base, _TORCH_MARGIN * torch_relative), _LOOSEST * base)


def expect_alike(name: str, result: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
    """Raises WrongResultError unless `result` has this shape, dtype and device."""
    if tuple(result.shape) != tuple(shape):
        message = f"{name} has shape {tuple(result.shape)}, expected {tuple(shape)}"
        raise WrongResultError(message, Fault.WRONG_FORM, name)
    if result.dtype != dtype:
        message = f"{name} is {dtype_name(result.dtype)}, expected {dtype_name(dtype)}"
        raise WrongResultError(message, Fault.WRONG_FORM, name)
    if result.device.type != device.type:
        raise WrongResultError(f"{name} is on {result.device}, expected {device}", Fault.WRONG_FORM, name)


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected value of one tensor: its float64 oracle, the oracle's norm and the allowed relative error.

    torch_error: norm of the error of torch's own result, None where torch cannot run it; torch_relative: the same over
    the oracle's norm. sensitivity: None until a result needs it.
    """

    oracle: Tensor
    scale: float
    torch_error: float | None
    torch_relative: float | None
    allowed: float
    precision: str
    depth: int
    sensitivity: Sensitivity | None = None


def expect(oracle: Tensor, precision: str, depth: int) -> Expected:
    """The expected value of one tensor, without torch's own result."""
    if oracle.dtype.is_floating_point and precision in _LARGEST:
        # A number that the precision cannot hold is infinite there.
        oracle = torch.where(oracle.abs() < _LARGEST[precision], oracle, oracle.sign() * math.inf)
    scale = _norm(oracle.double())
    if not math.isfinite(scale):
        scale = _norm(oracle.double().masked_fill(~oracle.isfinite(), 0.0))
    return Expected(oracle, scale, None, None, tolerance(precision, depth, None), precision, depth)


def with_torch(expected: Expected, by_torch: Tensor) -> Expected:
    """Adds the error of torch's own result to `expected`, which can only raise the allowed error.

    by_torch: torch's result in the case's own precision. In f64 `by_torch` is a float32 result, whose scaled-down error
    shows how much the formula cancels.
    """
    torch_error = _norm(_difference(by_torch, expected.oracle))
    if expected.precision == "f64":
        torch_error *= EPSILON["f64"] / EPSILON["f32"]
    torch_relative = _ratio(torch_error, expected.scale)
    allowed = tolerance(expected.precision, expected.depth, torch_relative)
    return replace(expected, torch_error=torch_error, torch_relative=torch_relative, allowed=allowed)


def compare(name: str, result: Tensor, expected: Expected) -> TensorError:
    """Every error measure of `result`. NaN and infinite errors become the largest float, since JSON has neither."""
    difference = _difference(result, expected.oracle)
    relative = _ratio(_norm(difference), expected.scale)
    absolute, worst_index = 0.0, list[int]()
    if difference.numel():
        flat = int(difference.reshape(-1).argmax())
        absolute, worst_index = float(difference.reshape(-1)[flat]), index_of(flat, difference.shape)
    right, allowed = relative <= expected.allowed, expected.allowed
    if not right and expected.sensitivity is not None:
        right, allowed = _judge_by_sensitivity(result, expected, difference)
    return TensorError(
        name=name,
        right=right,
        norm=_finite(_norm(result.double())),
        oracle_norm=_finite(_norm(expected.oracle.double())),
        relative=_finite(relative),
        absolute=_finite(absolute),
        ulp=_finite(_ulp(difference, expected.oracle, expected.precision)),
        torch_relative=None if expected.torch_relative is None else _finite(expected.torch_relative),
        tolerance=_finite(allowed),
        worst_index=worst_index,
    )


def is_right(result: Tensor, expected: Expected) -> bool:
    """Whether `compare` would call `result` right, without the error measures that take longer to compute."""
    difference = _difference(result, expected.oracle)
    if _ratio(_norm(difference), expected.scale) <= expected.allowed:
        return True
    return expected.sensitivity is not None and _judge_by_sensitivity(result, expected, difference)[0]


def _judge_by_sensitivity(result: Tensor, expected: Expected, difference: Tensor) -> tuple[bool, float]:
    """(whether the result is right by what the last bit can change, the allowed relative error of this result)."""
    assert expected.sensitivity is not None
    low, high = expected.sensitivity.low, expected.sensitivity.high
    if low.dtype == torch.bool:
        # torch does not subtract truth values.
        low, high = low.to(torch.int8), high.to(torch.int8)
    wide = result.detach().to(low.dtype)
    outside = torch.where((wide >= low) & (wide <= high), 0.0, torch.minimum(_gap(wide, low), _gap(wide, high)))
    # An element that is not finite has the difference of the oracle: 0 where both are the same.
    outside = torch.where(outside.isfinite(), torch.minimum(outside, difference), difference)
    terms = max(expected.scale, expected.sensitivity.scale)
    accumulator = EPSILON["f64" if expected.precision == "f64" else "f32"] * math.sqrt(max(expected.depth, 1))
    # TF32 rounds the factors, and everything else only the result.
    rounded = terms if expected.precision in ("tf32", "3xtf32") else expected.scale
    allowed = _MARGIN * (EPSILON[expected.precision] * rounded + accumulator * terms)
    if expected.precision == "i32":
        allowed = 0.0
    elif expected.torch_error is not None and math.isfinite(expected.torch_error):
        loosest = _LOOSEST * _MARGIN * (EPSILON[expected.precision] + accumulator) * terms
        allowed = max(allowed, min(_TORCH_MARGIN * expected.torch_error, loosest))
    # Numbers below the smallest normal one may be flushed to zero.
    allowed += _SMALLEST[expected.precision] * math.sqrt(result.numel())
    ambiguous = _norm(torch.where(outside.isfinite(), difference - outside, 0.0))
    return _norm(outside) <= allowed, _ratio(ambiguous + allowed, expected.scale)


def _gap(result: Tensor, border: Tensor) -> Tensor:
    return (result - border).abs().double()


def explain(error: TensorError, result: Tensor) -> str:
    """One line on a wrong tensor: its relative error, the worst element, and the share that is not finite."""
    index = f"[{', '.join(map(str, error.worst_index))}]"
    line = (
        f"{error.name} off by {_text(error.relative)} (tolerance {error.tolerance:.3g}), "
        f"largest difference {_text(error.absolute)} at {index}"
    )
    not_finite = int((~torch.isfinite(result)).sum()) if result.dtype.is_floating_point else 0
    return f"{line}, {not_finite} of {result.numel()} elements NaN or infinite" if not_finite else line


def _text(number: float) -> str:
    return f"{number:.3g}" if number < sys.float_info.max else "infinity"


def _difference(result: Tensor, oracle: Tensor) -> Tensor:
    """|result − oracle| in float64; 0 where both are the same NaN or infinity, infinite where only one of them is."""
    if not result.dtype.is_floating_point:
        return (result.long() - oracle.long()).abs().double()
    wide = result.detach().double()
    difference = (wide - oracle).abs_()
    if math.isfinite(float(difference.sum())):
        return difference
    same = (wide == oracle) | (wide.isnan() & oracle.isnan())
    return difference.nan_to_num_(nan=math.inf, posinf=math.inf).masked_fill_(same, 0.0)


def _ratio(error: float, scale: float) -> float:
    if error == 0.0:
        return 0.0
    return error / scale if scale else math.inf


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor)) if tensor.numel() else 0.0


def _ulp(difference: Tensor, oracle: Tensor, precision: str) -> float:
    """The largest difference in ULP, units in the last place of the oracle's value in `precision`."""
    if not difference.numel():
        return 0.0
    if precision == "i32" or not oracle.dtype.is_floating_point:
        return float(difference.max())
    exponent = torch.frexp(oracle.double().nan_to_num(0.0, 0.0, 0.0))[1] - 1
    unit = (
        torch.ldexp(torch.ones_like(difference), exponent.clamp_(min=_SMALLEST_NORMAL[precision])) * EPSILON[precision]
    )
    return float((difference / unit).max())


def _finite(number: float) -> float:
    return number if math.isfinite(number) else sys.float_info.max


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


def chosen_inputs(problem: CaseProblem, data: CaseData, chosen: Mapping[str, Tensor]) -> list[CaseData]:
    """The data in float64 with chosen elements of its inputs moved up, and down, by their last bit.

    chosen: by the name of an input, from 0 for elements that stay to 1. Those that move do so by the same, and in the
    order of these numbers.
    """
    moved = []
    for sign, in_order in product((1.0, -1.0), (False, True)):
        names = iter([name for name, _ in data.tensors()])

        def move(tensor: Tensor, step: float = sign * _step(problem), in_order: bool = in_order) -> Tensor:
            share = chosen.get(next(names))  # noqa: B023 - it is called in this round alone.
            if share is None or not tensor.dtype.is_floating_point or has_overlap(tensor):
                return tensor.detach().clone()
            wide = tensor.detach().double()
            size = wide.abs() + torch.finfo(torch.float32).tiny
            return wide + step * size * (share if in_order else share.sign())

        moved.append(data.map(move))
    return moved


def _step(problem: CaseProblem) -> float:
    return _STEP_F64 if problem.case.precision == "f64" else _STEP


class RoundingNoise(DispatchMode):  # type: ignore[no-untyped-call]
    """While active, changes every floating-point result of an operator by plus or minus `step` of its size.

    Operators that torch can decompose, such as the gradient of a layer norm, are run in parts.
    """

    def __init__(self, step: float, seed: int) -> None:
        super().__init__()
        # Importing it takes 0.4 s, which most children never need.
        from torch._decomp import decomposition_table

        self._step = step
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._decompositions = decomposition_table

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **named)
        if any(value.alias_info is not None for value in (*func._schema.arguments, *func._schema.returns)):
            # Its results are views, or arguments that it changed.
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
