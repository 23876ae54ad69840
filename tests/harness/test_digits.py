"""A wrong result of a case in f32 that has the digits of tf32 or bf16 says so, with the remedy; other errors do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.harness.test_right_results import make_problem
from warpwatch.contract.messages import CheckReply
from warpwatch.contract.words import Fault, Status
from warpwatch.operator import Precision, case
from warpwatch.worker.harness.checks.check import check
from warpwatch.worker.harness.checks.probes import ProbeHistory
from warpwatch.worker.harness.guards.digits import round_significand

Rounded = Callable[[Tensor], Tensor]


def to_tf32(tensor: Tensor, to_integer: Rounded = torch.round) -> Tensor:
    return round_significand(tensor, 11, to_integer)


def to_bf16(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().float()


def product(x: Tensor, w: Tensor, rounded: Rounded = lambda tensor: tensor) -> Tensor:
    """Two products in a row, as in attention: a tensor core rounds the first one's result as well."""
    return rounded(torch.tanh(rounded(x) @ rounded(w))) @ rounded(w)


def check_product(
    variant: Callable[[Tensor, Tensor], Tensor],
    precision: Precision = "f32",
    reference: Callable[..., Tensor] = product,
) -> CheckReply:
    problem = make_problem(
        reference,
        variant,
        case(n=64, precision=precision),
        lambda given, make: {"x": make.normal(given["n"], given["n"]), "w": make.normal(given["n"], given["n"])},
    )
    return check(problem, 0, ProbeHistory(), lambda *_: None)


@pytest.mark.parametrize(
    ("rounded", "precision"),
    [
        pytest.param(to_tf32, "tf32", id="tf32"),
        pytest.param(partial(to_tf32, to_integer=torch.trunc), "tf32", id="tf32 by cutting off"),
        pytest.param(to_bf16, "bf16", id="bf16"),
    ],
)
def test_a_product_of_rounded_factors_is_told_with_the_remedy(rounded: Rounded, precision: str) -> None:
    reply = check_product(partial(product, rounded=rounded))
    assert (reply.status, reply.fault, reply.subjects) == (Status.WRONG, Fault.REDUCED_PRECISION, [precision])
    assert f"these digits are {precision}'s: declare the case's precision as {precision}, or " in reply.message


def test_rounded_inputs_of_an_operator_without_products_are_told_too() -> None:
    reply = check_product(lambda x, w: to_bf16(x) * to_bf16(w), reference=lambda x, w: x * w)
    assert (reply.fault, reply.subjects) == (Fault.REDUCED_PRECISION, ["bf16"])


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(lambda x, w: product(x, w) * (1 + 4e-4), id="a wrong factor as large as tf32's rounding"),
        pytest.param(lambda x, w: product(x, w) + 4e-3 * torch.randn_like(x), id="noise of that size"),
        pytest.param(lambda x, w: product(x.roll(1), w), id="other inputs"),
    ],
)
def test_other_errors_of_that_size_are_wrong_values(variant: Callable[[Tensor, Tensor], Tensor]) -> None:
    reply = check_product(variant)
    assert (reply.status, reply.fault, reply.subjects) == (Status.WRONG, Fault.WRONG_VALUES, ["y"])
    assert "digits" not in reply.message


def test_factors_rounded_to_tf32_are_right_where_the_case_says_so() -> None:
    assert check_product(partial(product, rounded=to_tf32), "tf32").status is Status.OK
