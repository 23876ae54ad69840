"""Honest code is not accused: where terms cancel, where several results are right, and where no gradient is defined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count, repeat
from typing import Any

import pytest
import torch
from torch import Tensor

from warpwatch.contract.words import Fault, Status
from warpwatch.operator import Case, Cost, Operator, Variant, case
from warpwatch.worker.harness.checks import recomputation
from warpwatch.worker.harness.checks.check import check
from warpwatch.worker.harness.checks.probes import ProbeContext, ProbeHistory, special_values
from warpwatch.worker.harness.checks.recomputation import Times, chance_of
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.oracle import Oracle, Sensitivity, compare, expect
from warpwatch.worker.harness.problem import CaseProblem

Function = Callable[..., Any]
NEEDS_GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"))


def make_problem(
    reference: Function,
    variant: Function,
    chosen: Case,
    inputs: Callable[[Case, Any], dict[str, Any]],
    gradients: tuple[str, ...] = ("x",),
    device: str = "cpu",
) -> CaseProblem:
    operator = Operator(
        "operator",
        "An operator.",
        inputs=inputs,
        reference=reference,
        cost=lambda given: Cost(1, 1),
        cases={"quick": (chosen,)},
        gradients=gradients,
    )
    return CaseProblem(operator, Variant("v1", variant, "another way"), chosen, torch.device(device))


def judge(
    reference: Function,
    variant: Function,
    chosen: Case,
    inputs: Callable[[Case, Any], dict[str, Any]],
    gradients: tuple[str, ...] = ("x",),
    device: str = "cpu",
) -> Fault | None:
    """The fault that a check finds in the variant; None where it is right."""
    problem = make_problem(reference, variant, chosen, inputs, gradients, device)
    try:
        reply = check(problem, 5, ProbeHistory(), lambda done, total, text: None)
    except WrongResultError as wrong:
        return wrong.fault
    assert (reply.status is Status.OK) == (reply.fault is None), reply
    return reply.fault


def normal(given: Case, make: Any) -> dict[str, Any]:
    return {"x": make.normal(given["rows"], given["n"])}


def layer_norm(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def layer_norm_by_hand(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


class TimesFactor(torch.autograd.Function):
    """A layer norm whose gradient is wrong by a factor or by a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, shift: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.wrong = factor, shift
        return layer_norm(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        factor, shift = ctx.wrong
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(layer_norm(x), x, g)
        return factor * gradient + shift, None, None


@pytest.mark.parametrize("precision", ["f64", "f32", "bf16"])
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (1, 2), (7, 1), (33, 2), (1, 5)])
@pytest.mark.parametrize("variant", [layer_norm, layer_norm_by_hand])
def test_a_gradient_whose_terms_cancel_is_right(precision: Any, rows: int, n: int, variant: Function) -> None:
    assert judge(layer_norm, variant, case(precision, "bwd", rows=rows, n=n), normal) is None


@pytest.mark.parametrize(("n", "factor", "shift"), [(1, 1.0, 0.1), (2, 1.0, 0.1), (5, 1.001, 0.0), (64, 1.0, 1e-3)])
def test_a_fault_beside_terms_that_cancel_is_found(n: int, factor: float, shift: float) -> None:
    fault = judge(layer_norm, lambda x: TimesFactor.apply(x, factor, shift), case("f32", "bwd", rows=7, n=n), normal)
    assert fault is Fault.WRONG_VALUES


def tied(given: Case, make: Any) -> dict[str, Any]:
    """Rows that hold every number twice."""
    half = make.normal(given["rows"], given["n"] // 2)
    return {"x": torch.cat([half, half], -1)}


def test_a_tie_has_several_right_gradients() -> None:
    chosen = case("f32", "bwd", rows=7, n=12)
    assert judge(lambda x: x.amax(-1), lambda x: x.max(-1).values, chosen, tied) is None
    assert judge(lambda x: x.max(-1).values, lambda x: x.flip(-1).max(-1).values, chosen, tied) is None


def test_the_gradient_of_a_tie_belongs_to_one_of_the_tied() -> None:
    chosen = case("f32", "bwd", rows=7, n=12)
    assert judge(lambda x: x.amax(-1), lambda x: x.amin(-1), chosen, tied) is Fault.WRONG_VALUES
    shifted = judge(lambda x: x.amax(-1), lambda x: x.roll(1, -1).max(-1).values.roll(1), chosen, tied)
    assert shifted is Fault.WRONG_VALUES


def middle_of_tied(x: Tensor) -> Tensor:
    """The maximum of every row; the gradient goes to the second of three and more that are tied."""
    places = torch.stack([row[min(1, len(row) - 1)] for row in ((r == r.max()).nonzero()[:, 0] for r in x.detach())])
    return x.gather(1, places[:, None])[:, 0]


def maximum_of_halves(x: Tensor) -> Tensor:
    """Two that are tied share the gradient, in every step."""
    while x.shape[1] > 1:
        half = (x.shape[1] + 1) // 2
        x = torch.maximum(x[:, :half], x[:, -half:])
    return x[:, 0]


@pytest.mark.parametrize("variant", [middle_of_tied, maximum_of_halves])
@pytest.mark.parametrize("rows", [3, 64])
def test_any_of_many_tied_may_get_the_gradient(variant: Function, rows: int) -> None:
    def rounded(given: Case, make: Any) -> dict[str, Any]:
        return {"x": make.normal(given["rows"], given["n"]).mul(2).round().clamp(-3, 3)}

    chosen = case("f32", "bwd", rows=rows, n=48)
    assert judge(lambda x: x.amax(1), variant, chosen, rounded) is None
    # What is none of the largest gets no gradient.
    wrong = judge(lambda x: x.amax(1), lambda x: x.amax(1) + 0.01 * (x[:, 0] - x[:, 0].detach()), chosen, rounded)
    assert wrong is Fault.WRONG_VALUES


@pytest.mark.parametrize("seed", range(4))
def test_an_incoming_nan_goes_with_a_nan_among_the_inputs(seed: int) -> None:
    """A maximum that gives its gradient to one element gives it to the NaN."""
    problem = make_problem(lambda x: x.amax(1), lambda x: x.max(1).values, case("f32", "bwd", rows=2, n=9), normal)
    with problem.modes():
        oracle = Oracle(problem, problem.data(seed), lambda: problem.data(seed))
        assert special_values(ProbeContext(problem, seed, problem.data(seed), oracle, ProbeHistory())) == ""


def test_tied_numbers_may_come_in_any_order() -> None:
    def first(x: Tensor) -> Any:
        return torch.sort(x, dim=-1, stable=True).indices[..., :1]

    def last(x: Tensor) -> Any:
        n = x.shape[-1]
        return n - 1 - torch.sort(x.flip(-1), dim=-1, stable=True).indices[..., :1]

    assert judge(first, last, case(rows=7, n=12), tied, ()) is None
    assert judge(first, lambda x: torch.argmax(x, -1, keepdim=True), case(rows=7, n=12), tied, ()) is not None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_a_gradient_that_autograd_leaves_out_may_be_left_out(device: str) -> None:
    chosen = case("f32", "bwd", rows=3, n=4)

    def inputs(given: Case, make: Any) -> dict[str, Any]:
        return {"x": make.normal(given["rows"], given["n"]), "unused": make.normal(2)}

    def doubled(x: Tensor, unused: Tensor) -> Tensor:
        return 2 * x

    assert judge(doubled, doubled, chosen, inputs, ("x", "unused"), device) is None
    used = judge(lambda x, unused: 2 * x + unused.sum(), doubled, chosen, inputs, ("x", "unused"), device)
    assert used is Fault.MISSING_GRADIENT


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_a_gradient_of_zeros_may_have_no_memory(device: str) -> None:
    assert judge(torch.sgn, torch.sgn, case("f32", "bwd", rows=3, n=4), normal, device=device) is None


def test_an_output_without_gradient_stands_beside_one_with_it() -> None:
    def with_mean(x: Tensor) -> tuple[Tensor, Tensor]:
        return layer_norm(x), x.mean(-1).detach()

    assert judge(with_mean, with_mean, case("f32", "bwd", rows=3, n=8), normal) is None
    lost = judge(with_mean, lambda x: (layer_norm(x).detach(), x.mean(-1)), case("f32", "bwd", rows=3, n=8), normal)
    assert lost is Fault.MISSING_GRADIENT


def test_a_nan_among_the_inputs_is_no_change_of_them() -> None:
    def inputs(given: Case, make: Any) -> dict[str, Any]:
        x = make.normal(given["n"])
        x[3] = float("nan")
        return {"x": x}

    assert judge(lambda x: 2 * x, lambda x: x + x, case(n=9), inputs) is None


def test_plain_arguments_that_vary_are_not_mixed_up() -> None:
    def inputs(given: Case, make: Any) -> dict[str, Any]:
        return {"x": make.normal(given["n"]), "factor": float(make.normal(1))}

    assert judge(lambda x, factor: factor * x, lambda x, factor: x * factor, case(n=9), inputs) is None


def test_a_number_too_small_for_its_precision_may_be_zero() -> None:
    def inputs(given: Case, make: Any) -> dict[str, Any]:
        return {"x": 1e-4 * make.normal(given["n"])}

    assert judge(lambda x: x.prod(), lambda x: x.flip(0).prod(), case(n=40), inputs) is None


def test_a_number_too_large_for_its_precision_is_infinite() -> None:
    def inputs(given: Case, make: Any) -> dict[str, Any]:
        return {"x": 1000 * make.normal(given["n"])}

    assert judge(lambda x: x * x, lambda x: x.square(), case("f16", n=40), inputs) is None
    saturated = judge(lambda x: x * x, lambda x: x.square().clamp(max=65504), case("f16", n=40), inputs)
    assert saturated is Fault.WRONG_VALUES


def test_a_nan_in_padding_may_be_left_out() -> None:
    def padded(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 4)) @ torch.nn.functional.pad(torch.ones(9, 1), (0, 0, 0, 4)).to(x)

    def times_zero(x: Tensor) -> Tensor:
        mask = torch.zeros(x.shape[-1]).index_fill(0, torch.arange(4), 1.0).to(x)
        return x * mask

    def selected(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x[..., :4], (0, x.shape[-1] - 4))

    assert judge(times_zero, selected, case(rows=3, n=9), normal) is None
    assert judge(padded, lambda x: x.sum(-1, keepdim=True), case(rows=3, n=9), normal) is None
    swallowed = judge(lambda x: 2 * x, lambda x: (2 * x).nan_to_num(), case(rows=3, n=9), normal)
    assert swallowed is Fault.PROBE


def judge_special_values(
    reference: Function, variant: Function, rows: int = 3, n: int = 9, seed: int = 5
) -> tuple[Fault | None, str]:
    """(the fault that planted special values show, what the probe says)."""
    problem = make_problem(reference, variant, case(rows=rows, n=n), normal)
    with problem.modes():
        oracle = Oracle(problem, problem.data(seed), lambda: problem.data(seed))
        # The call on the same inputs without special values comes first, as in a check.
        problem.run(problem.data(seed))
        try:
            special_values(ProbeContext(problem, seed, problem.data(seed), oracle, ProbeHistory()))
        except WrongResultError as wrong:
            return wrong.fault, str(wrong)
    return None, ""


def losing_maximum(x: Tensor) -> Tensor:
    """As `if (x > best) best = x` does: whatever is compared with NaN loses."""
    best = torch.full_like(x[..., 0], -math.inf)
    for column in x.unbind(-1):
        best = torch.where(column > best, column, best)
    return best


@pytest.mark.parametrize("seed", range(8))
def test_a_maximum_that_loses_nan_is_no_cache(seed: int) -> None:
    """Without the NaN it is the maximum of the inputs before, and so is the answer of a cache."""
    fault, message = judge_special_values(lambda x: x.amax(-1), losing_maximum, seed=seed)
    assert fault is Fault.SPECIAL_VALUES
    assert "swallows NaN" in message
    assert 'write `no_special_values="why"` into the variant, or into the operator' in message
    assert "docs/verdicts.md" in message


@pytest.mark.parametrize("seed", range(8))
def test_special_values_may_do_what_the_reference_does_with_them(seed: int) -> None:
    assert judge_special_values(losing_maximum, losing_maximum, seed=seed) == (None, "")
    assert judge_special_values(losing_maximum, lambda x: x.amax(-1), seed=seed) == (None, "")

    def keeps_nan_in_float64(x: Tensor) -> Tensor:
        return x.amax(-1) if x.dtype == torch.float64 else losing_maximum(x)

    assert judge_special_values(keeps_nan_in_float64, losing_maximum, seed=seed) == (None, "")


def test_a_cache_that_special_values_do_not_reach_is_named() -> None:
    kept: dict[float, Tensor] = {}

    def by_first_number(x: Tensor) -> Tensor:
        return kept.setdefault(float(x[0, 0]), x.amax(-1))

    fault, message = judge_special_values(lambda x: x.amax(-1), by_first_number)
    assert fault is Fault.CACHED_RESULT
    assert "follows them among new inputs" in message


def test_a_variant_that_leaves_numbers_out_is_wrong_and_no_cache() -> None:
    # Of this seed, the maximum stands among the first five numbers, and the special values behind them.
    fault, _ = judge_special_values(lambda x: x.amax(-1), lambda x: x[..., :5].amax(-1), rows=1, n=40, seed=18)
    assert fault is Fault.WRONG_VALUES


def test_a_variant_that_leaves_numbers_out_now_and_then_is_wrong_and_no_cache() -> None:
    calls = count(1)

    def leaves_out(x: Tensor) -> Tensor:
        # The fourth call is the first on new inputs.
        return x.amax(-1) if next(calls) == 4 else x[..., :5].amax(-1)

    fault, _ = judge_special_values(lambda x: x.amax(-1), leaves_out, rows=1, n=40, seed=18)
    assert fault is Fault.WRONG_VALUES


class TimedCalls:
    """Stands for calls that take so long, in rounds of pairs. evidence: of a second mechanism."""

    def __init__(self, repeated: Iterator[float], new: Iterator[float], evidence: str | None = "the CPU works") -> None:
        self._repeated, self._new, self._evidence = repeated, new, evidence
        self.asked: list[int] = []

    def time_repeated_and_new(self, _clock: Any, pairs: int) -> list[Times]:
        self.asked.append(pairs)
        return [Times([next(self._repeated) for _ in range(pairs)], [next(self._new) for _ in range(pairs)])]

    def expect_right_answer_of_fastest(self) -> None:
        pass

    def find_evidence(self) -> str | None:
        return self._evidence


def is_accused(calls: Any) -> bool:
    with suppress(WrongResultError):
        recomputation._expect_as_long(calls, recomputation._wall_ns, 5)
        return False
    return True


@pytest.mark.parametrize(("slow_rounds", "accused"), [(0, False), (1, False), (2, False), (3, True)])
def test_a_suspicion_on_a_busy_host_is_timed_more_often(slow_rounds: int, accused: bool) -> None:
    """Calls on new inputs are slow by chance in the first rounds; those of a variant that caches are slow in all."""
    new = chain([9e5] * sum((5, 10, 20)[:slow_rounds]), repeat(1e5))
    calls = TimedCalls(repeat(1e5), new)
    assert is_accused(calls) == accused
    assert calls.asked == [5, 10, 20][: slow_rounds + 1]


@pytest.mark.parametrize(("fast", "accused"), [(1, False), (4, False), (12, True), (35, True)])
def test_a_few_fast_calls_on_a_busy_host_accuse_nobody(fast: int, accused: bool) -> None:
    """Of 35 calls on repeated inputs so many are fast, and none on new ones."""
    assert is_accused(TimedCalls(chain([1e5] * fast, repeat(9e5)), repeat(9e5))) == accused


@pytest.mark.parametrize("fast", [(), (2,), (2, 9, 20, 30)])
def test_a_few_fast_calls_on_new_inputs_acquit_nobody(fast: tuple[int, ...]) -> None:
    """A cache knows these of 35 new inputs by accident."""
    new = (1e5 if place in fast else 9e5 for place in range(35))
    assert is_accused(TimedCalls(repeat(1e5), new))


def test_nobody_is_accused_because_a_call_returns_sooner() -> None:
    assert not is_accused(TimedCalls(repeat(1e5), repeat(9e5), evidence=None))


def test_the_chance_of_a_lopsided_count() -> None:
    assert chance_of(14, 0) == 2**-14
    assert chance_of(17, 1) == pytest.approx(19 / 2**18)
    assert chance_of(0, 0) == 1
    assert chance_of(5, 5) > 0.5


def test_a_result_without_numbers_has_a_tolerance() -> None:
    oracle = torch.ones(4, dtype=torch.float64)
    expected = replace(expect(oracle, "f32", depth=1), sensitivity=Sensitivity(2.0, oracle, oracle))
    error = compare("y", torch.full((4,), math.nan), expected)
    assert not error.right
    assert 0 < error.tolerance < 1e-5


def test_a_wrong_truth_value_beside_numbers_is_found() -> None:
    """A mask has no last bit that could explain it."""

    def signs(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.abs(), x > 0

    def one_wrong(x: Tensor) -> tuple[Tensor, Tensor]:
        size, mask = signs(x)
        mask[0] = ~mask[0]
        return size, mask

    given = case(n=100)
    operator = Operator(
        "signs",
        "|x| and x > 0",
        inputs=lambda given, make: {"x": make.normal(given["n"])},
        reference=signs,
        cost=lambda given: Cost(given["n"], 4 * given["n"]),
        cases={"quick": (given,)},
    )
    for function, status in ((signs, Status.OK), (one_wrong, Status.WRONG)):
        problem = CaseProblem(operator, Variant("v1", function, ""), given, torch.device("cpu"))
        reply = check(problem, 0, ProbeHistory(), lambda *_: None)
        assert reply.status is status
        assert reply.subjects == ([] if status is Status.OK else ["y[1]"])
