"""Every operator that ships has mutants of its own meaning, and its check kills each for the intended reason."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from warpwatch.operator import Case, Operator
from warpwatch.worker.harness import oracle
from warpwatch.worker.harness.checks.check import check
from warpwatch.worker.harness.checks.probes import ProbeHistory
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.problem import CaseData, CaseProblem
from warpwatch.worker.proving import SHIPPED, ExpectedFault, read_expectations

EXPECTATIONS = read_expectations(SHIPPED / "mutants")
CPU = torch.device("cpu")
_kills: Counter[tuple[str, str]] = Counter()
"""How many mutants a case has killed so far, by operator and case."""


@pytest.fixture(scope="module", autouse=True)
def _sensitivities() -> Iterator[None]:
    """The mutants of an operator have its reference, whose sensitivity to the last bits of the same inputs is measured
    once for all of them: it takes two thirds of a check that finds wrong values."""
    known: dict[Any, dict[str, oracle.Sensitivity]] = {}
    measure = oracle.measure_sensitivity

    def once(problem: CaseProblem, data: CaseData, expected: dict[str, Tensor]) -> dict[str, oracle.Sensitivity]:
        numbers = [
            (name, t.dtype, t.shape, t.stride(), t.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
            for name, t in data.tensors()
        ]
        key = problem.operator.name, problem.case, tuple(numbers)
        if key not in known:
            known[key] = measure(problem, data, expected)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle, "measure_sensitivity", once)
        yield


def test_every_operator_has_at_least_three() -> None:
    operators = {path.stem for path in SHIPPED.glob("[a-z]*.py")}
    assert {expectations.operator for expectations in EXPECTATIONS} == operators
    assert all(len(expectations.caught_by) >= 3 for expectations in EXPECTATIONS)


def mutants() -> Iterator[Any]:
    """Every run kills the first two mutants of each operator, and the first that each fault finds; nightly all."""
    for expectations in EXPECTATIONS:
        faults: set[ExpectedFault] = set()
        for index, (variant, expected) in enumerate(expectations.caught_by.items()):
            marks = [pytest.mark.nightly] if index >= 2 and expected in faults else []
            faults.add(expected)
            yield pytest.param(
                expectations.operator, variant, expected, id=f"{expectations.operator}-{variant}", marks=marks
            )


@pytest.mark.parametrize(("name", "variant", "expected"), mutants())
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
