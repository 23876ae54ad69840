"""Holds one result against its float64 oracle.

The tolerance on the relative (Frobenius) error is `2 · (eps + eps_sum · √depth)`: one rounding of the result, and a sum
of `depth` terms whose roundings are independent, so that they grow with the root. eps is that of the case's precision;
eps_sum is that of the accumulator one may expect, float32 for every precision of 16 bits and tf32. Where torch's own
run in that precision, the operator's `by_torch` or else its reference, is less exact (several rounded steps,
cancellation), four times its error is allowed, up to 16 times the formula. In f64 that error is a float32 run's, scaled
down, because the oracle is no more exact than what it judges.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from warpwatch.contract.measurement import TensorError

from .failures import WrongResultError

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
_MARGIN = 2.0
_TORCH_MARGIN = 4.0
_LOOSEST = 16.0


def tolerance(precision: str, depth: int, torch_relative: float | None) -> float:
    """Largest relative error that counts as right; whole numbers must be exact."""
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
        raise WrongResultError(f"{name} has shape {tuple(result.shape)} and not {tuple(shape)}")
    if result.dtype != dtype:
        raise WrongResultError(f"{name} is {_text(result.dtype)} and not {_text(dtype)}")
    if result.device.type != device.type:
        raise WrongResultError(f"{name} is on {result.device} and not on {device}")


@dataclass(frozen=True, slots=True)
class Expected:
    """What one tensor must be: the float64 oracle, its norm, and the relative error that is allowed around it."""

    oracle: Tensor
    scale: float
    torch_relative: float | None
    allowed: float
    precision: str


def expect(oracle: Tensor, by_torch: Tensor | None, precision: str, depth: int) -> Expected:
    """`by_torch` is the reference in the case's own precision, None where torch cannot run it.

    In f64 it is that in float32, since the oracle cannot show its own error. Scaled down, it tells how much the formula
    cancels.
    """
    scale = _norm(oracle.double())
    if not math.isfinite(scale):
        scale = _norm(oracle.double().masked_fill(~oracle.isfinite(), 0.0))
    torch_relative = None if by_torch is None else _relative(_difference(by_torch, oracle), scale)
    if torch_relative is not None and precision == "f64":
        torch_relative *= EPSILON["f64"] / EPSILON["f32"]
    return Expected(oracle, scale, torch_relative, tolerance(precision, depth, torch_relative), precision)


def compare(name: str, result: Tensor, expected: Expected) -> TensorError:
    """Every error measure of `result`; numbers that are not finite are given as the largest float, since JSON has none."""
    difference = _difference(result, expected.oracle)
    relative = _relative(difference, expected.scale)
    absolute, worst = _worst(difference)
    return TensorError(
        name=name,
        right=relative <= expected.allowed,
        norm=_finite(_norm(result.double())),
        oracle_norm=_finite(_norm(expected.oracle.double())),
        relative=_finite(relative),
        absolute=_finite(absolute),
        ulp=_finite(_ulp(difference, expected.oracle, expected.precision)),
        torch_relative=None if expected.torch_relative is None else _finite(expected.torch_relative),
        tolerance=expected.allowed,
        worst_index=worst,
    )


def is_right(result: Tensor, expected: Expected) -> bool:
    """Whether `compare` would call it right, without the measures that take longer to compute."""
    return _relative(_difference(result, expected.oracle), expected.scale) <= expected.allowed


def explain(error: TensorError, result: Tensor) -> str:
    """One line on a wrong tensor: how wrong, where, and how many numbers are not even finite."""
    where = f"[{', '.join(map(str, error.worst_index))}]"
    line = (
        f"{error.name}: relative error {_shown(error.relative)} exceeds the tolerance {error.tolerance:.3g}; "
        f"largest difference {_shown(error.absolute)} at {where}"
    )
    broken = int((~torch.isfinite(result)).sum()) if result.dtype.is_floating_point else 0
    return f"{line}; {broken} of {result.numel()} numbers are NaN or infinite" if broken else line


def _shown(number: float) -> str:
    return f"{number:.3g}" if number < sys.float_info.max else "infinite"


def _difference(result: Tensor, oracle: Tensor) -> Tensor:
    """|result − oracle| in float64; NaN or infinity where the oracle has the same counts as no difference, else as
    infinite."""
    if not result.dtype.is_floating_point:
        return (result.long() - oracle.long()).abs().double()
    wide = result.detach().double()
    difference = (wide - oracle).abs_()
    if math.isfinite(float(difference.sum())):
        return difference
    same = (wide == oracle) | (wide.isnan() & oracle.isnan())
    return difference.nan_to_num_(nan=math.inf, posinf=math.inf).masked_fill_(same, 0.0)


def _relative(difference: Tensor, scale: float) -> float:
    error = _norm(difference)
    if error == 0.0:
        return 0.0
    return error / scale if scale else math.inf


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor)) if tensor.numel() else 0.0


def _worst(difference: Tensor) -> tuple[float, list[int]]:
    if not difference.numel():
        return 0.0, []
    flat = int(difference.reshape(-1).argmax())
    return float(difference.reshape(-1)[flat]), [
        int(i) for i in torch.unravel_index(torch.tensor(flat), difference.shape)
    ]


def _ulp(difference: Tensor, oracle: Tensor, precision: str) -> float:
    """Largest difference in units in the last place that the oracle's value has in `precision`."""
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


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
