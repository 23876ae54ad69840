"""Plants NaN, infinities, denormals and negative zero among the inputs, and looks where they come out.

The numbers between them are those of an earlier run, so its oracle tells which elements of a result the planting
touches. An element that it does not touch must be as right as before. One that the oracle calls NaN because of a NaN,
or infinite because of an infinity, must not be an ordinary number. Nothing else is judged: what an infinity minus, over
or times another comes to, or a gradient at a point that has none, is a matter of how the formula is written.
"""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor

from .compare import compare, explain, is_right
from .failures import WrongResultError
from .probe_context import NotProbedError, ProbeContext
from .problem import CaseData

_NAN, _INFINITE = (math.nan, math.nan), (math.inf, -math.inf)


def special_values(scene: ProbeContext) -> str:
    """Runs the variant once with NaN and once with infinities among its numbers; WrongResultError names what came out
    wrong."""
    reason = scene.problem.operator.no_special_values or scene.problem.variant.no_special_values
    if reason:
        raise NotProbedError(reason)
    for values in (_NAN, _INFINITE):
        planted = scene.data.map(lambda tensor: tensor.detach().clone())
        with torch.no_grad():
            if not _plant(planted, values, scene.seed):
                raise NotProbedError("no input holds floating-point numbers")
        oracle = scene.problem.oracle(planted)
        for name, result in scene.problem.run(planted).items():
            if result.dtype.is_floating_point and result.shape == oracle[name].shape:
                _judge(scene, name, result.detach(), oracle[name], values is _NAN)
    return ""


def _judge(scene: ProbeContext, name: str, result: Tensor, oracle: Tensor, nan: bool) -> None:
    no_number = oracle.isnan() if nan else oracle.isinf()
    swallowed = no_number & result.isfinite()
    expected = scene.truth.expected[name]
    if bool(swallowed.any()):
        if is_right(result, expected):
            raise WrongResultError(
                f"{name} is the answer to numbers that this call was not given: a result was kept, or the variant searches for the "
                "reference's result"
            )
        where = [int(i) for i in torch.unravel_index(swallowed.to(torch.uint8).reshape(-1).argmax(), swallowed.shape)]
        raise WrongResultError(
            f"{name}{where} is {float(result[tuple(where)]):.6g} and not {float(oracle[tuple(where)]):g}; "
            f"so are {int(swallowed.sum())} of {int(no_number.sum())}: {'NaN is' if nan else 'infinities are'} swallowed"
        )
    judged = torch.where(oracle == expected.oracle, result.to(expected.oracle.dtype), expected.oracle)
    if not is_right(judged, expected):
        what = "NaN" if nan else "infinities"
        raise WrongResultError(f"elements that {what} do not enter: {explain(compare(name, judged, expected), judged)}")


def _plant(data: CaseData, values: tuple[float, ...], seed: int) -> bool:
    """Puts special values into the data, in place; False where nothing takes them.

    `values` go into the largest input and the incoming gradients alone, because one NaN in a small operand, such as a
    weight, would leave no number to judge; denormals and negative zeros go everywhere.
    """
    floats = [(name, t) for name, t in data.tensors() if t.dtype.is_floating_point and t.numel() and t.is_contiguous()]
    if not floats:
        return False
    largest = max(floats, key=lambda pair: pair[1].numel())[0]
    rng = random.Random(seed)
    for name, tensor in floats:
        harsh = values if name == largest or name.startswith("incoming") else ()
        chosen = [*harsh, torch.finfo(tensor.dtype).smallest_normal / 4, -0.0][: max(1, tensor.numel() // 2)]
        places = torch.tensor(rng.sample(range(tensor.numel()), len(chosen)), device=tensor.device)
        tensor.view(-1)[places] = torch.tensor(chosen, dtype=tensor.dtype, device=tensor.device)
    return True
