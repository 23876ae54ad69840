"""Judges quantizers code by code and scale by scale.

An error of the whole tensor would let single wrong codes pass. So each scale is compared with the exact one, and each
code with the number over the scale that the variant returned, both computed in float64. A scale in f32 may be off by
the rounding of two operations. A code may be either of two if the number lies between them up to such an error, but not
if the scale is a power of two, by which every way of dividing is exact: a tie then goes to the even code. Zeros of both
signs are the same.

A block that holds NaN or infinity must have a scale that is not finite, and its codes mean nothing. Codes without
scales saturate, and NaN stays NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpwatch.contract.measurement import TensorError
from warpwatch.contract.number_formats import NumberFormat, number_format
from warpwatch.operator import QuantizedOutput
from warpwatch.quantization import (
    block_maxima,
    decode,
    dequantize,
    encode,
    exact_scales,
    exact_tensor_scale,
    quotients,
    spread,
    stored_dtype,
    unpack,
)

from .problem import index_of

_NEAR = 2.0**-21
"""The relative error of a quotient, or of a scale, that is computed in f32 with up to three roundings."""
_HALF_STEP = {"e4m3": 2.0**-4, "e5m2": 2.0**-3, "e2m1": 2.0**-2, "i8": 2.0**-8, "i4": 2.0**-4, "e8m0": 0.0}
"""The relative error of rounding to an element, or to a scale; of f32 scales it is _NEAR."""
_NO_NUMBER = 1 << 12
"""The rank of NaN."""
_INTERVALS, _LARGEST_DEVIATION = 8, 6.0
"""Stochastic rounding: intervals of the distance to the lower code, and the deviation, in standard deviations of the
number that is rounded up, that chance does not reach."""


@dataclass(frozen=True, slots=True)
class CodeFault:
    """What is wrong with an output: the message, the index of the first wrong code or scale, and how many are wrong."""

    message: str
    index: list[int]
    count: int


class CodeJudge:
    """Judges the outputs of one call that hold codes and scales. inputs: the arguments of the call."""

    def __init__(self, outputs: Sequence[QuantizedOutput], inputs: Mapping[str, Any], count: int) -> None:
        self._outputs, self._inputs, self._count = outputs, inputs, count
        indices = {i for q in outputs for i in (q.codes, q.scale, q.tensor_scale) if i is not None}
        self.names = {self._name(index) for index in indices}

    def faults(self, results: Mapping[str, Tensor]) -> dict[str, CodeFault]:
        """The fault of each output that is wrong, scales before the codes that they belong to."""
        faults: dict[str, CodeFault] = {}
        for output in self._outputs:
            form, numbers = number_format(output.number_format), self._numbers(output)
            tensor, blocks = self._scales(output, results)
            if tensor is not None:
                assert output.tensor_scale is not None
                exact = exact_tensor_scale(numbers, form)
                wrong = ~_near(tensor, exact)
                _note(faults, self._name(output.tensor_scale), wrong, lambda _, s=tensor, e=exact: _scale_text(s, e))
            if blocks is not None:
                assert output.scale is not None
                self._judge_scales(faults, self._name(output.scale), numbers, blocks, tensor, form)
            self._judge_codes(faults, output, results, numbers, blocks, tensor)
        return faults

    def errors(self, results: Mapping[str, Tensor], oracle: Mapping[str, Tensor]) -> list[TensorError]:
        """The error measures of every output that is judged here: codes by the numbers that they stand for, with their
        own scales. Only near ties make an error; the tolerance is that of a result of which each is rounded wrong."""
        faults, errors = self.faults(results), []
        for output in self._outputs:
            form = number_format(output.number_format)
            for index in (output.codes, output.scale, output.tensor_scale):
                if index is None:
                    continue
                name = self._name(index)
                values = [self._values(output, index, form, given) for given in (results, oracle)]
                norms = [float(torch.linalg.vector_norm(value.nan_to_num(0.0, 0.0, 0.0))) for value in values]
                difference = (values[0] - values[1]).abs().nan_to_num(0.0, 0.0, 0.0)
                error = float(torch.linalg.vector_norm(difference))
                relative = error / norms[1] if norms[1] else float(error > 0)
                fault = faults.get(name)
                at = fault.index if fault else [0] * difference.dim()
                errors.append(
                    TensorError(
                        name=name,
                        right=fault is None,
                        norm=norms[0],
                        oracle_norm=norms[1],
                        relative=relative,
                        absolute=float(difference.max()) if difference.numel() else 0.0,
                        ulp=float(fault.count) if fault else 0.0,
                        torch_relative=None,
                        tolerance=_HALF_STEP.get(form.element if index == output.codes else form.scale, _NEAR),
                        worst_index=at,
                    )
                )
        return errors

    def _name(self, index: int) -> str:
        return "y" if self._count == 1 else f"y[{index}]"

    def _numbers(self, output: QuantizedOutput) -> Tensor:
        source: Tensor = self._inputs[output.source].detach()
        return (source.mT if output.transposed else source).double()

    def _scales(self, output: QuantizedOutput, results: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """(the scale of the tensor, those of the blocks), decoded."""
        form = number_format(output.number_format)
        tensor = None if output.tensor_scale is None else results[self._name(output.tensor_scale)].double()
        if output.scale is None:
            return tensor, None
        blocks = results[self._name(output.scale)]
        return tensor, decode(blocks.view(stored_dtype(form.scale)), form.scale)

    def _values(self, output: QuantizedOutput, index: int, form: NumberFormat, results: Mapping[str, Tensor]) -> Tensor:
        tensor, blocks = self._scales(output, results)
        if index != output.codes:
            scale = tensor if index == output.tensor_scale else blocks
            assert scale is not None
            return scale
        codes = results[self._name(index)].view(stored_dtype(form.element))
        scales = None if blocks is None else blocks if tensor is None else (blocks, tensor)
        return dequantize(codes, scales, form.element)

    def _judge_scales(
        self,
        faults: dict[str, CodeFault],
        name: str,
        numbers: Tensor,
        blocks: Tensor,
        tensor: Tensor | None,
        form: NumberFormat,
    ) -> None:
        exact = exact_scales(numbers, form, tensor)
        if form.scale == "e4m3":
            low, high = (decode(encode(exact * (1 + sign * _NEAR), "e4m3"), "e4m3") for sign in (-1, 1))
            wrong = ~(((blocks >= low) & (blocks <= high)) | (blocks.isnan() & exact.isnan()))
            # With a scale of the tensor that is not finite, nothing is.
            wrong &= tensor is None or bool(tensor.isfinite().all())
        elif form.scale == "e8m0":
            wrong = (blocks != exact) & ~(blocks.isnan() & exact.isnan())
        else:
            wrong = ~_near(blocks, exact)
        maxima = block_maxima(numbers, form)

        def explain(at: tuple[int, ...]) -> str:
            return f"{_scale_text(blocks[at], exact[at])}; the largest number of its block is {float(maxima[at]):.9g}"

        _note(faults, name, wrong, explain)

    def _judge_codes(
        self,
        faults: dict[str, CodeFault],
        output: QuantizedOutput,
        results: Mapping[str, Tensor],
        numbers: Tensor,
        blocks: Tensor | None,
        tensor: Tensor | None,
    ) -> None:
        form, name = number_format(output.number_format), self._name(output.codes)
        codes = results[name]
        codes = unpack(codes) if form.is_packed else codes
        ranks = _rank(codes, form.element)
        if blocks is None:
            exact, scale = numbers, torch.ones_like(numbers)
        else:
            wide = blocks if tensor is None else blocks * tensor
            exact, scale = quotients(numbers, wide), spread(wide, *numbers.shape)
        is_exact = (scale.view(torch.int64) & ((1 << 52) - 1)) == 0
        margin = torch.where(is_exact, 0.0, exact.abs() * _NEAR)
        if output.rounding == "stochastic":
            low, high = _neighbours(exact, margin, form.element)
        else:
            low, high = (_rank(encode(exact + sign * margin, form.element), form.element) for sign in (-1, 1))
        wrong = ((ranks < low) | (ranks > high)) & scale.isfinite()

        def explain(at: tuple[int, ...]) -> str:
            got, wanted = int(codes[at].view(torch.uint8)), (low[at], high[at])
            between = " or ".join(dict.fromkeys(_describe(int(rank), form.element) for rank in wanted))
            text = f"is code 0x{got:02x} ({_text(decode(codes[at].view(stored_dtype(form.element)), form.element))})"
            at_scale = "" if blocks is None else f", {float(numbers[at]):.9g} over the scale {float(scale[at]):.9g}"
            below, above = (_describe(int(r), form.element) for r in _around(exact[at], form.element))
            number = f"{float(exact[at]):.9g}{at_scale}"
            return f"{text}, expected {between}: the number is {number}, between {below} and {above}"

        _note(faults, name, wrong, explain)
        if output.rounding == "stochastic" and name not in faults:
            message = _judge_distribution(exact, ranks, low, high, scale.isfinite(), form.element)
            if message:
                faults[name] = CodeFault(f"{name} {message}", [0, 0], 0)


def _near(given: Tensor, exact: Tensor) -> Tensor:
    """Whether f32 scales are right: as near as two roundings, or not finite where the exact ones are not."""
    return ((given - exact).abs() <= _NEAR * exact.abs()) | (~given.isfinite() & ~exact.isfinite())


def _note(faults: dict[str, CodeFault], name: str, wrong: Tensor, explain: Any) -> None:
    """Adds the fault of an output if any element is wrong, with the index of the first."""
    count = int(wrong.sum())
    if not count:
        return
    flat = int(wrong.to(torch.uint8).reshape(-1).argmax())
    at = tuple(index_of(flat, wrong.shape))
    place = "" if not at else f" at [{', '.join(map(str, at))}]"
    faults.setdefault(
        name, CodeFault(f"{name}{place} {explain(at)}; {count} of {wrong.numel()} are wrong", [*at], count)
    )


def _scale_text(given: Tensor, exact: Tensor) -> str:
    return f"is the scale {float(given):.9g}, expected {float(exact):.9g}"


def _text(number: Tensor) -> str:
    return f"{float(number):g}"


def _rank(codes: Tensor, element: str) -> Tensor:
    """The place of each code in the order of their numbers, 0 for both zeros; NaN has a rank of its own."""
    if element in ("i8", "i4"):
        return decode(codes, element).to(torch.int16)
    sign = 8 if element == "e2m1" else 128
    code = codes.view(torch.uint8).to(torch.int16)
    rank = torch.where(code >= sign, -(code & (sign - 1)), code)
    return torch.where(decode(codes.view(stored_dtype(element)), element).isnan(), _NO_NUMBER, rank).to(torch.int16)


def _describe(rank: int, element: str) -> str:
    """The code of a rank with its number."""
    if rank == _NO_NUMBER:
        return "NaN"
    if element in ("i8", "i4"):
        return f"0x{rank & (0xF if element == 'i4' else 0xFF):02x} ({rank})"
    code = rank if rank >= 0 else -rank + (8 if element == "e2m1" else 128)
    return f"0x{code:02x} ({_text(decode(torch.tensor([code], dtype=torch.uint8), element)[0])})"


def _around(numbers: Tensor, element: str) -> tuple[Tensor, Tensor]:
    """The ranks of the two codes between which each number lies, the same for a number that has a code."""
    nearest = encode(numbers, element)
    rank, value = _rank(nearest, element), decode(nearest, element)
    down = torch.where((value > numbers) & (rank > -_NO_NUMBER), rank - 1, rank)
    up = torch.where((value < numbers) & (rank < _NO_NUMBER), rank + 1, rank)
    limit = _rank(encode(torch.full_like(numbers, math.inf), element), element)
    least = _rank(encode(torch.full_like(numbers, -math.inf), element), element)
    is_number = rank != _NO_NUMBER
    return torch.where(is_number, down.clamp(least, limit), rank), torch.where(is_number, up.clamp(least, limit), rank)


def _neighbours(numbers: Tensor, margin: Tensor, element: str) -> tuple[Tensor, Tensor]:
    """The ranks of the codes that stochastic rounding may choose from."""
    return _around(numbers - margin, element)[0], _around(numbers + margin, element)[1]


def _judge_distribution(
    numbers: Tensor, ranks: Tensor, low: Tensor, high: Tensor, is_judged: Tensor, element: str
) -> str | None:
    """Why stochastic rounding is not that: numbers are rounded up more or less often than their distance from the lower
    code, as a share of the distance between both, says; None where chance explains it."""
    chosen = is_judged & (high - low == 1)
    below, above = (_value(rank[chosen], element) for rank in (low, high))
    share = ((numbers[chosen] - below) / (above - below)).clamp(0.0, 1.0)
    is_up = (ranks[chosen] == high[chosen]).double()
    for interval in range(_INTERVALS):
        inside = (share * _INTERVALS).floor().clamp(max=_INTERVALS - 1) == interval
        expected, count = float(share[inside].sum()), int(inside.sum())
        deviation = math.sqrt(float((share[inside] * (1 - share[inside])).sum()))
        found = float(is_up[inside].sum())
        if abs(found - expected) > _LARGEST_DEVIATION * max(deviation, 1.0):
            where = f"{interval / _INTERVALS:g} to {(interval + 1) / _INTERVALS:g} of the way to the next code"
            wanted = f"expected {expected:.0f} ± {deviation:.0f}"
            return f"rounds {found:.0f} of {count} numbers up that lie {where}, {wanted}"
    return None


def _value(ranks: Tensor, element: str) -> Tensor:
    if element in ("i8", "i4"):
        return ranks.double()
    sign = 8 if element == "e2m1" else 128
    return decode(torch.where(ranks < 0, sign - ranks, ranks).to(torch.uint8), element)
