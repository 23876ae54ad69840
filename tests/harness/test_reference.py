"""The fault of a reference is one of the definition, said once per operator, and never booked on a variant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.harness.child import Harness
from tests.harness.conftest import SOURCE
from warpwatch.contract.messages import BenchReply, CheckReply
from warpwatch.contract.words import Fault, Status
from warpwatch.operator import Case, Cost, Operator, Variant, case
from warpwatch.worker.harness.checks.reference import ReferenceChecks
from warpwatch.worker.harness.failures import BadDefinitionError, Refusal, describe
from warpwatch.worker.harness.problem import CaseProblem

CPU = torch.device("cpu")
Function = Callable[..., Any]


def make_problem(
    reference: Function, direction: Any = "fwd", name: str = "masked", variant: str = "v1", rows: int = 4
) -> CaseProblem:
    chosen = case("f32", direction, rows=rows, n=8)

    def inputs(given: Case, make: Any) -> dict[str, Any]:
        x = make.normal(given["rows"], given["n"])
        return {"x": x, "mask": torch.arange(given["rows"])[:, None] > 0}

    operator = Operator(
        name,
        "An operator.",
        inputs=inputs,
        reference=reference,
        cost=lambda given: Cost(1, 1),
        cases={"quick": (chosen,)},
        gradients=("x",),
    )
    return CaseProblem(operator, Variant(variant, reference, "the same"), chosen, CPU)


def zero_over_zero(x: Tensor, mask: Tensor) -> Tensor:
    kept = torch.where(mask, x, 0.0)
    return torch.where(mask, x * kept / kept, 0.0)


def masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    hidden = x.masked_fill(~mask, -torch.inf)
    return torch.softmax(hidden, -1)


def root(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).square().sum(-1).sqrt()


def random(x: Tensor, mask: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x * mask)


def in_memory_order(x: Tensor, mask: Tensor) -> Tensor:
    return x.as_strided(x.shape, (x.shape[1], 1)) * mask


def detached(x: Tensor, mask: Tensor) -> Tensor:
    return x.detach() * mask


def raising(x: Tensor, mask: Tensor) -> Tensor:
    return x @ mask


@pytest.mark.parametrize(
    ("reference", "direction", "line", "words"),
    [
        (zero_over_zero, "bwd", 2, "gives NaN for finite inputs, in 8 of 32 elements of grad x"),
        (masked_softmax, "fwd", 2, "gives NaN for finite inputs, in 8 of 32 elements of y"),
        (root, "bwd", 0, "gives NaN for finite inputs, in 8 of 32 elements of grad x"),
        (random, "fwd", 0, "gives different answers for the same inputs"),
        (in_memory_order, "fwd", 0, "gives another answer for the same numbers in another memory layout"),
        (detached, "bwd", 0, "has no gradient"),
        (raising, "fwd", 1, "raise RuntimeError: "),
    ],
)
def test_a_reference_that_cannot_judge_is_a_bad_definition(
    reference: Function, direction: str, line: int, words: str
) -> None:
    problem = make_problem(reference, direction)
    with problem.modes(), pytest.raises(BadDefinitionError) as caught:
        ReferenceChecks().expect_usable(problem, 3)
    message = str(caught.value)
    begin = inspect.getsourcelines(reference)[1]
    assert message.startswith(f"harness/test_reference.py, line {begin + line}: ")
    assert words in message
    failure = describe(caught.value, CPU)
    assert (failure.status, failure.message, failure.fault) == (Status.BUILD_FAILED, message, Fault.BAD_DEFINITION)


def infinite_by_design(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(~mask, -torch.inf)


def only_for_dense_tensors(x: Tensor, mask: Tensor) -> Tensor:
    return x.view(-1).view(x.shape) * mask


@pytest.mark.parametrize("reference", [infinite_by_design, only_for_dense_tensors])
def test_a_usable_reference_passes(reference: Function) -> None:
    problem = make_problem(reference)
    with problem.modes():
        ReferenceChecks().expect_usable(problem, 3)


def test_a_fault_of_a_reference_is_reported_once_per_operator() -> None:
    checks = ReferenceChecks()
    first, others = make_problem(random), [make_problem(random, variant="v2"), make_problem(random, rows=5)]
    with first.modes():
        with pytest.raises(BadDefinitionError):
            checks.expect_usable(first, 3)
        for other in others:
            with pytest.raises(Refusal, match="as v1 rows=4,n=8,f32,fwd says") as refusal:
                checks.expect_usable(other, 3)
            assert refusal.value.status is Status.SKIPPED
        with pytest.raises(BadDefinitionError):
            checks.expect_usable(make_problem(random, name="another"), 3)


def test_no_variant_is_blamed_for_the_reference(harness: Harness) -> None:
    """A gradient that is NaN in the reference alone is off by infinity in every right variant."""
    names = {"operator": "unjudged", "case": "n=10,f32,bwd"}
    benched = harness.ask(BenchReply, "bench", variant="right", budget_ns=1_000_000, **names)
    assert (benched.status, benched.fault, benched.measurements) == (Status.BUILD_FAILED, Fault.BAD_DEFINITION, [])
    lines = (SOURCE / "kernels" / "unjudged.py").read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(lines) if "kept * x / kept" in text)
    assert benched.message.startswith(f"kernels/unjudged.py, line {line}: the reference of unjudged gives NaN")
    checked = harness.ask(CheckReply, "check", variant="right_as_well", **names)
    assert (checked.status, checked.fault) == (Status.SKIPPED, None)
    assert "as right n=10,f32,bwd says" in checked.message
    forward = harness.ask(CheckReply, "check", operator="unjudged", variant="right", case="n=10,f32,fwd")
    assert forward.status is Status.OK, forward.message
