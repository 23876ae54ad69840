"""Quantizers are judged code by code: messages name the code, near ties are right, stochastic rounding is tested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import scaled_matmul
from kernels.quantize import operator, sized
from warpwatch import quantization
from warpwatch.contract.messages import CheckReply
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator, QuantizedOutput, Variant, case
from warpwatch.quantization import LARGEST, decode, dequantize, encode, quantize
from warpwatch.worker.harness.checks.anticheat import expect_honest
from warpwatch.worker.harness.checks.check import check
from warpwatch.worker.harness.checks.probes import ProbeHistory
from warpwatch.worker.harness.checks.reference import ReferenceChecks
from warpwatch.worker.harness.failures import BadDefinitionError, WrongResultError
from warpwatch.worker.harness.guards.integrity import TamperGuard
from warpwatch.worker.harness.problem import CaseProblem, SeededMaker
from warpwatch.worker.harness.timers.ceilings import _coded_rate

CPU = torch.device("cpu")
ROWS = sized("f32", 96, 256, "e4m3-row")


def check_quantizer(function: Callable[..., object], operator: Operator = operator, given: Case = ROWS) -> CheckReply:
    problem = CaseProblem(operator, Variant("tried", function, "in a test"), given, CPU)
    return check(problem, 7, ProbeHistory(), lambda *_: None)


def by_rows(scaled: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., object]:
    """A quantizer in f32 whose scales are right and whose quotients are those of `scaled`(numbers, maxima)."""

    def run(x: Tensor, number_format: str, transposed: bool) -> object:
        maxima = x.abs().amax(1, keepdim=True).clamp(min=1e-12)
        return scaled(x, maxima).clamp(-448, 448).to(torch.float8_e4m3fn), maxima / 448

    return run


@pytest.mark.parametrize(
    "scaled",
    [
        lambda x, maxima: x / (maxima / 448),
        lambda x, maxima: x * (448 / maxima),
        lambda x, maxima: x * (1 / (maxima / 448)),
        lambda x, maxima: x * (maxima * (1 / 448)).reciprocal(),
    ],
    ids=["quotient", "factor", "reciprocal", "product"],
)
def test_every_way_of_dividing_in_f32_is_right(scaled: Callable[[Tensor, Tensor], Tensor]) -> None:
    reply = check_quantizer(by_rows(scaled))
    assert reply.status is Status.OK, reply.message
    assert all(error.relative <= error.tolerance for error in reply.tensors)


def test_a_message_names_the_code_its_neighbours_and_its_scale() -> None:
    def one_up(x: Tensor, number_format: str, transposed: bool) -> object:
        codes, scale = quantize(x, number_format)
        changed = codes.view(torch.uint8).clone()
        changed[2, 5] ^= 1
        return changed.view(codes.dtype), scale

    x = CaseProblem(operator, operator.variants["v1"], ROWS, CPU).data(7).inputs["x"]
    codes, scale = quantize(x, "e4m3-row")
    code = int(codes.view(torch.uint8)[2, 5])
    reply = check_quantizer(one_up)
    assert reply.status is Status.WRONG
    assert reply.message.startswith(f"y[0] at [2, 5] is code 0x{code ^ 1:02x} (")
    assert f"expected 0x{code:02x} ({float(codes[2, 5]):g})" in reply.message
    assert f"{float(x[2, 5]):.9g} over the scale {float(scale[2]):.9g}, between 0x" in reply.message
    assert reply.message.endswith("1 of 24576 are wrong")


def test_a_wrong_scale_is_named_with_the_largest_number_of_its_block() -> None:
    def doubled(x: Tensor, number_format: str, transposed: bool) -> object:
        codes, scale = quantize(x, number_format)
        scale[3] *= 1 + 2**-12
        return codes, scale

    reply = check_quantizer(doubled)
    assert reply.message.startswith("y[1] at [3, 0] is the scale ")
    assert "; the largest number of its block is " in reply.message


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (QuantizedOutput("z", "e4m3-row"), "quantizes 'z', which is no matrix among the inputs"),
        (QuantizedOutput("x", "e4m3-row", codes=2), "has no output 2, which is declared as quantized"),
        (QuantizedOutput("x", "e5m2-row"), r"gives other codes than it declares \(y\[1\] at \[0, 0\] is the scale"),
        (QuantizedOutput("x", "e4m3-rows"), "'e4m3-rows' is no number format: choose from e4m3"),
    ],
)
def test_a_wrong_declaration_is_a_fault_of_the_definition(declared: QuantizedOutput, message: str) -> None:
    wrong = replace(operator, quantized=lambda case: (declared,))
    problem = CaseProblem(wrong, operator.variants["v1"], ROWS, CPU)
    with pytest.raises(BadDefinitionError, match=message):
        ReferenceChecks().expect_usable(problem, 7)


def test_codes_of_another_format_are_of_the_wrong_form() -> None:
    def other(x: Tensor, number_format: str, transposed: bool) -> object:
        return quantize(x, "e5m2-row")

    with pytest.raises(Exception, match=r"y\[0\] is float8_e5m2, expected float8_e4m3fn"):
        check_quantizer(other)


STOCHASTIC = replace(
    operator,
    quantized=lambda case: (QuantizedOutput("x", case["y"], rounding="stochastic"),),
    variants={},
)


def stochastic(share_up: Callable[[Tensor], Tensor]) -> Callable[..., object]:
    """A quantizer that rounds up with a probability that depends on the share of the way to the next code."""

    def run(x: Tensor, number_format: str, transposed: bool) -> object:
        _, scale = quantize(x, number_format)
        exact = x.double() / scale.double()
        nearest = decode(encode(exact, "e4m3"), "e4m3")
        step = (exact.abs() * 2**-12).clamp(min=2**-12)
        # The neighbour on the other side is the nearest of a number that is moved there.
        other = exact + (exact - nearest).sign() * step
        for _ in range(14):
            is_same = decode(encode(other, "e4m3"), "e4m3") == nearest
            step = step * 2
            other = torch.where(is_same & (exact != nearest), exact + (exact - nearest).sign() * step, other)
        beside = decode(encode(other, "e4m3"), "e4m3")
        low, high = torch.minimum(nearest, beside), torch.maximum(nearest, beside)
        share = torch.where(high > low, (exact - low) / (high - low), 0.0)
        up = torch.rand(share.shape, generator=torch.Generator().manual_seed(3)) < share_up(share)
        chosen = torch.where(up & (exact.abs() < LARGEST["e4m3"]), high, low)
        return encode(torch.where(exact == nearest, nearest, chosen), "e4m3"), scale

    return run


@pytest.mark.parametrize(
    ("share_up", "is_right"),
    [
        (lambda share: share, True),
        (lambda share: (share > 0.5).double(), False),
        (lambda share: share * 0, False),
        (lambda share: share * 0 + 0.5, False),
        (lambda share: (share + 0.05).clamp(max=1), False),
    ],
    ids=["stochastic", "nearest", "down", "half", "biased"],
)
def test_stochastic_rounding_is_judged_by_its_distribution(
    share_up: Callable[[Tensor], Tensor], is_right: bool
) -> None:
    reply = check_quantizer(stochastic(share_up), STOCHASTIC)
    assert (reply.status is Status.OK) is is_right, reply.message
    assert is_right or "of the way to the next code, expected" in reply.message


def test_products_of_codes_are_timed_and_those_that_are_kept_are_found() -> None:
    kept: dict[int, Tensor] = {}

    def keep(a: Tensor, b: Tensor, **others: Any) -> Tensor:
        if a.data_ptr() not in kept:
            kept[a.data_ptr()] = scaled_matmul.v1(a, b, **others)
        return kept[a.data_ptr()].clone()

    given = scaled_matmul.sized("bf16", 8, 16, 64, "mxfp8")
    problem = CaseProblem(scaled_matmul.operator, scaled_matmul.operator.variants["v1"], given, CPU)
    with problem.modes():
        expect_honest(problem, 7)
    cheat = CaseProblem(scaled_matmul.operator, Variant("keep", keep, "keeps results"), given, CPU)
    with cheat.modes(), pytest.raises(WrongResultError, match="caches results"):
        expect_honest(cheat, 7)


def test_a_variant_that_replaces_what_decodes_is_found() -> None:
    guard, before = TamperGuard(), quantization.power_of_two
    quantization.power_of_two = lambda exponent: before(exponent) * 0
    assert guard.restore() == ["warpwatch.quantization.power_of_two"]
    assert quantization.power_of_two is before


@pytest.mark.parametrize("element", ["e4m3", "i8"])
def test_products_of_codes_have_a_measured_ceiling(element: str) -> None:
    assert _coded_rate(CPU, element, 64, 0) > 0


def test_inputs_hold_every_code_and_every_kind_of_block() -> None:
    for name, kinds in {"e4m3-1x128": 253, "e5m2-row": 247, "mxfp4": 15, "i8-row": 256, "i4g32": 16}.items():
        given = case("bf16", rows=256, columns=256, y=name)
        codes, scale = SeededMaker(7, CPU, "bf16").codes(name, 256, 256)
        numbers = dequantize(codes, None, given.number_format("y").element)
        assert len(numbers.unique()) == kinds, name
        assert numbers.isfinite().all()
        size = dequantize(codes, scale, given.number_format("y").element).view(256, -1, 16).norm(dim=2)
        assert (size == 0).any()
        assert size[size > 0].max() < 100 * size[size > 0].median()
