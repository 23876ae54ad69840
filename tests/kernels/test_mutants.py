"""Every operator that ships has mutants of its own meaning, and its check kills each for the intended reason."""

from __future__ import annotations

import importlib
from collections import Counter

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
_kills: Counter[tuple[str, str]] = Counter()
"""How many mutants a case has killed so far, by operator and case."""


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
    # The first case that kills ends the search: those of the suite edge are small, and a case that killed other mutants
    # of the operator is likely to kill this one, too.
    cases = sorted((*operator.cases["edge"], *operator.cases["quick"]), key=lambda given: -_kills[name, given.key])
    killer = next((given for given in cases if is_killed(operator, variant, given, expected)), None)
    assert killer is not None
    _kills[name, killer.key] += 1


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
