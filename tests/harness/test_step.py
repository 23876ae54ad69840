"""Training steps: both passes in one call, the forward pass of one alone, and work that moves between the passes."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.harness.child import ROOT, Harness
from warpwatch.contract.case import Case, Direction
from warpwatch.contract.messages import BenchReply, CheckReply
from warpwatch.contract.words import Fault, Status
from warpwatch.operator import Cost, Operator, Variant, both_directions, case
from warpwatch.worker.harness.bench import open_timer
from warpwatch.worker.harness.failures import Refusal, WrongResultError
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.harness.timers.counts import count_memory

CPU = torch.device("cpu")
DIRECTIONS: tuple[Direction, ...] = ("fwd", "bwd", "step", "fwd_train")
GRADIENTS = ["grad x", "grad weights[0]", "grad weights[1]"]


def load_steps() -> Operator:
    """y = x A B C D with the gradient of x: plain, and with the gradient's work in the forward pass."""
    path = ROOT / "worker" / "adversaries" / "honest" / "kernels" / "steps.py"
    spec = importlib.util.spec_from_file_location("steps_of_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    operator: Operator = module.operator
    return operator


STEPS = load_steps()
ROWS, N = 96, 128


def problem(direction: Direction, variant: str, operator: Operator = STEPS) -> CaseProblem:
    case = replace(operator.all_cases()[0], direction=direction)
    return CaseProblem(operator, operator.variants[variant], case, CPU)


@pytest.mark.parametrize(
    ("direction", "names"),
    [("step", ["y[0]", "y[1]", *GRADIENTS]), ("fwd_train", ["y[0]", "y[1]"]), ("bwd", GRADIENTS)],
)
def test_every_result_of_a_direction_is_checked(harness: Harness, direction: str, names: list[str]) -> None:
    reply = harness.ask(CheckReply, "check", operator="pair", variant="good", case=f"n=33,f32,{direction}")
    assert (reply.status, reply.message) == (Status.OK, "")
    assert [error.name for error in reply.tensors] == names
    assert {probe.status for probe in reply.probes} <= {"ok", "skipped"}


@pytest.mark.parametrize(
    ("variant", "direction", "fault"),
    [
        ("second_weight_lost", "step", Fault.MISSING_GRADIENT),
        # Its outputs are right, and still carry a gradient.
        ("second_weight_lost", "fwd_train", None),
        ("one_output", "step", Fault.WRONG_FORM),
        ("one_output", "fwd_train", Fault.WRONG_FORM),
    ],
)
def test_a_step_is_wrong_where_one_of_its_passes_is(
    harness: Harness, variant: str, direction: str, fault: Fault | None
) -> None:
    reply = harness.ask(CheckReply, "check", operator="pair", variant=variant, case=f"n=33,f32,{direction}")
    assert (reply.status, reply.fault) == ((Status.OK, None) if fault is None else (Status.WRONG, fault))


class WrongGradient(torch.autograd.Function):
    """The gradient of x² without its factor of two."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * x


SQUARE = Operator(
    "squares",
    "x².",
    inputs=lambda case, make: {"x": make.normal(case["n"])},
    reference=lambda x: x * x,
    cost=lambda case: (
        Cost(case["n"], 8 * case["n"]) if case.direction == "fwd" else Cost(2 * case["n"], 12 * case["n"])
    ),
    cases={"quick": both_directions(case(n=1000), case(n=7))},
    gradients=("x",),
    variants={
        "right": Variant("right", lambda x: x * x, ""),
        "wrong_gradient": Variant("wrong_gradient", WrongGradient.apply, ""),
        "detached": Variant("detached", lambda x: x.detach() ** 2, ""),
        "forward_alone": Variant(
            "forward_alone", lambda x: x * x, "", unsupported=lambda case, _: {"bwd": "no"}.get(case.direction)
        ),
        "prepared": Variant("prepared", lambda x, twice: x * twice / 2, "", prepare=lambda x: {"twice": 2 * x}),
    },
)


@pytest.mark.parametrize(
    ("variant", "direction", "wrong"),
    [
        ("right", "step", None),
        ("wrong_gradient", "step", "grad x"),
        ("wrong_gradient", "bwd", "grad x"),
        ("wrong_gradient", "fwd_train", None),
        ("detached", "fwd", None),
        ("detached", "step", "y carries no gradient"),
        ("detached", "fwd_train", "y carries no gradient"),
        ("prepared", "step", None),
        ("prepared", "fwd_train", None),
    ],
)
def test_timed_calls_are_verified(variant: str, direction: Direction, wrong: str | None) -> None:
    stage = problem(direction, variant, SQUARE)
    is_caught = pytest.raises(WrongResultError, match=wrong) if wrong is not None else nullcontext()
    with stage.modes(), is_caught:
        timer = open_timer(stage, 1, "hot", 1_000_000, 1)
        timer.take()
        timer.verify()


def test_an_operator_file_sees_two_directions_alone() -> None:
    seen: list[str] = []

    def note(case: Case, *_: Any) -> Any:
        seen.append(case.direction)
        return {"x": torch.ones(3)}

    operator = replace(SQUARE, inputs=note)
    CaseProblem(operator, operator.variants["right"], replace(operator.all_cases()[0], direction="step"), CPU).data(0)
    assert set(seen) == {"bwd"}
    costs = [SQUARE.cost_of(replace(SQUARE.all_cases()[0], direction=direction)) for direction in DIRECTIONS]
    assert costs == [Cost(1000, 8000), Cost(2000, 12000), Cost(3000, 20000), Cost(1000, 8000)]
    for direction in ("bwd", "step", "fwd_train"):
        with pytest.raises(Refusal, match="no"):
            problem(direction, "forward_alone", SQUARE).refuse_unsupported()
    problem("fwd", "forward_alone", SQUARE).refuse_unsupported()


def test_one_case_of_a_list_is_a_step_unless_directions_are_named() -> None:
    cases = case(n=1), case(n=2), case(n=3)
    keys = [item.key for item in both_directions(*cases)]
    assert keys == [*(f"n={n},f32,{direction}" for n in (1, 2, 3) for direction in ("fwd", "bwd")), "n=1,f32,step"]
    assert [item.direction for item in both_directions(*cases[:1], directions=DIRECTIONS)] == list(DIRECTIONS)
    assert [item.direction for item in both_directions(*cases, directions=("bwd",))] == ["bwd"] * 3
    assert both_directions() == ()


def flops(direction: Direction, variant: str) -> float:
    """The operations of a call, in products of the rows and one weight."""
    stage = problem(direction, variant)
    with stage.modes():
        call = stage.call(stage.data(1))
        with FlopCounterMode(display=False) as counter:
            call()
    return counter.get_total_flops() / (2 * ROWS * N**2)


def test_a_step_shows_what_work_costs_that_moved_into_the_forward_pass() -> None:
    """The backward pass gains a factor of four, a forward pass without gradients nothing, and a step loses."""
    weights = 3 * N / ROWS
    assert [flops(direction, "chain") for direction in DIRECTIONS] == [4, 4, 8, 4]
    assert [flops(direction, "in_forward") for direction in DIRECTIONS] == [4, 1, 5 + weights, 4 + weights]
    assert (5 + weights) / 8 > 1.1


def kept(direction: Direction, variant: str) -> dict[str, float]:
    stage = problem(direction, variant)
    with stage.modes():
        counts = count_memory(stage, 1, 1e6)
    return {name: counter.median for name, counter in counts.counters.items()}


def test_memory_that_is_kept_between_the_passes_is_counted_exactly() -> None:
    activation, weight = 4 * ROWS * N, 4 * N**2
    assert kept("fwd", "chain").keys() == {"memory"}
    for direction in ("bwd", "step", "fwd_train"):
        # The gradient of x needs the weights alone, which are inputs, so the result is all that is kept.
        assert kept(direction, "chain")["kept"] == activation
        assert kept(direction, "in_forward")["kept"] == activation + weight
    assert kept("step", "in_forward")["memory"] > kept("bwd", "in_forward")["memory"]


@pytest.mark.parametrize("direction", ["step", "fwd_train"])
def test_a_bench_of_a_step(harness: Harness, direction: str) -> None:
    reply = harness.ask(
        BenchReply, "bench", operator="scale", variant="good", case=f"n=1000,f32,{direction}", budget_ns=10_000_000
    )
    assert (reply.status, [item.metric for item in reply.measurements]) == (Status.OK, ["hot", "cold"])
    assert reply.counters["kept"].median > 0
