"""Compares one result with its float64 oracle.

The tolerance on the relative (Frobenius) error is `2 · (eps + eps_sum · √depth)`: one rounding of the result, plus a
sum of `depth` terms whose independent rounding errors grow with the square root. eps belongs to the case's precision.
eps_sum belongs to the expected accumulator: float32 for tf32 and every 16-bit precision.

torch's own result in that precision (the operator's `by_torch`, else its reference) may be less exact, because of
several rounded steps or cancellation. Then four times its error is allowed, up to 16 times the formula. In f64 the
oracle is no more exact than the result, so the error of a float32 run is used, scaled down.

A result outside this tolerance is judged again with the sensitivity of the oracle (see sensitivity.py): the rounding
errors of sums then belong to the size of their terms, even if the terms cancel, and an element may be anything that the
last bit of an input can make of it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from warpwatch.contract.measurement import TensorError
from warpwatch.contract.words import Fault

from .failures import WrongResultError
from .sensitivity import Sensitivity

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
        message = f"{name} is {_dtype_name(result.dtype)}, expected {_dtype_name(dtype)}"
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
    """What is expected with torch's own result known, which can only allow more.

    by_torch: torch's result in the case's own precision. In f64 it is a float32 result, whose scaled-down error shows
    how much the formula cancels.
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
    absolute, worst_index = _largest(difference)
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


def _largest(difference: Tensor) -> tuple[float, list[int]]:
    """(largest element, its index); (0.0, []) of an empty tensor."""
    if not difference.numel():
        return 0.0, []
    flat = int(difference.reshape(-1).argmax())
    return float(difference.reshape(-1)[flat]), index_of(flat, difference.shape)


def index_of(flat: int, shape: torch.Size) -> list[int]:
    """The index of the element at `flat` in row-major order.

    torch.unravel_index imports sympy, which takes seconds in every child.
    """
    index: list[int] = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        index.append(place)
    return index[::-1]


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


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
