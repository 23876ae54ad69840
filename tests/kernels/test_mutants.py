"""Every operator that ships has mutants of its own meaning, and its check kills each for the intended reason."""

from __future__ import annotations

import importlib

import pytest
import torch

from warpwatch.operator import Case, Operator
from warpwatch.worker.harness.checks.check import check
from warpwatch.worker.harness.checks.probes import ProbeHistory
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.proving import SHIPPED, ExpectedFault, read_expectations

EXPECTATIONS = read_expectations(SHIPPED / "mutants")
CPU = torch.device("cpu")


def test_every_operator_has_at_least_three() -> None:
    operators = {path.stem for path in SHIPPED.glob("[a-z]*.py")}
    assert {expectations.operator for expectations in EXPECTATIONS} == operators
    assert all(len(expectations.caught_by) >= 3 for expectations in EXPECTATIONS)


@pytest.mark.parametrize(
    ("name", "variant", "expected"),
    [
        pytest.param(expectations.operator, variant, expected, id=f"{expectations.operator}-{variant}")
        for expectations in EXPECTATIONS
        for variant, expected in expectations.caught_by.items()
    ],
)
def test_the_check_kills_it(name: str, variant: str, expected: ExpectedFault) -> None:
    operator: Operator = importlib.import_module(f"kernels.mutants.{name}").operator
    # Cases of the suite edge are small, and the first that kills ends the search.
    cases = (*operator.cases["edge"], *operator.cases["quick"])
    assert any(is_killed(operator, variant, given, expected) for given in cases)


def is_killed(operator: Operator, variant: str, given: Case, expected: ExpectedFault) -> bool:
    problem = CaseProblem(operator, operator.variants[variant], given, CPU)
    if problem.variant.reason_unsupported(given, "cpu") is not None:
        return False
    if problem.backward and not operator.gradients:
        return False
    try:
        reply = check(problem, 7, ProbeHistory(), lambda *_: None)
    except WrongResultError as error:
        return expected.fault is error.fault and expected.subject in ("", *error.subjects)
    return expected.fault is reply.fault and expected.subject in ("", *reply.subjects)
