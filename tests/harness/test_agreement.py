"""Times that contradict each other, launches that are left out, and answers that `prepare` has computed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from warpwatch.contract.words import Fault
from warpwatch.operator import Cost, Operator, case
from warpwatch.worker.harness import bench
from warpwatch.worker.harness.checks import preparation
from warpwatch.worker.harness.checks.preparation import expect_no_answer
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.guards.agreement import (
    BUSY,
    CallTimes,
    ReplayTimes,
    expect_equal_launches,
    expect_work_in_replays,
    find_disagreement,
    find_skipped_work,
)
from warpwatch.worker.harness.guards.integrity import TamperGuard
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.harness.timers.graphs import CapturedGraph
from warpwatch.worker.harness.timers.kernel import union_ns
from warpwatch.worker.harness.timers.rotation import Rotation

CASE = case(n=64)


@pytest.mark.parametrize(
    ("times", "is_parallel", "broken"),
    [
        pytest.param(
            {"graph": 41_400, "busy": 41_500, "cold": 44_900, "call": 60_000}, False, None, id="softmax 4096²"
        ),
        pytest.param({"graph": 790, "busy": 900, "cold": 3_100, "call": 12_600}, False, None, id="empty call, H100"),
        pytest.param(
            {"graph": 3_730, "busy": 3_230, "cold": 6_720, "call": 25_000}, False, None, id="matmul 64², H100"
        ),
        pytest.param({"graph": 6_200, "busy": 56_100}, False, ("graph", "busy"), id="launches once per buffer"),
        pytest.param({"graph": 5_600, "busy": 41_600}, False, ("graph", "busy"), id="leaves on known numbers"),
        pytest.param({"graph": 6_200, "busy": 56_100}, True, None, id="streams that a graph runs in parallel"),
        pytest.param({"cold": 4_000, "busy": 40_000}, False, ("cold", "busy"), id="events that lie"),
        pytest.param({"cold": 4_000, "busy": 40_000}, True, None, id="other streams begin while the timed one sleeps"),
        pytest.param({"call": 9_000, "busy": 40_000}, False, ("call", "busy"), id="a clock that lies"),
        pytest.param({"graph": 2_000, "cycles": 2_700}, False, None, id="launches became 0.3 µs slower"),
        pytest.param({"graph": 20_000, "cycles": 41_000}, False, ("graph", "cycles"), id="events half as long"),
        pytest.param(
            {"graph": 41_000, "cycles": 20_000}, False, ("cycles", "graph"), id="a cycle counter half as fast"
        ),
        pytest.param({"hot": 5.0, "cold": 9.0}, False, None, id="a CPU has no second clock"),
    ],
)
def test_each_metric_has_a_witness(times: dict[str, float], is_parallel: bool, broken: tuple[str, str] | None) -> None:
    assert find_disagreement(times, is_parallel=is_parallel) == broken


@pytest.mark.parametrize(
    ("added", "sets", "skipped"),
    [
        pytest.param([2, 2, 2, 2], 2, None, id="every call alike"),
        pytest.param([3, 2, 2, 2], 2, None, id="the first call makes a constant"),
        pytest.param([1, 1, 0, 0], 2, 2, id="once per buffer"),
        pytest.param([2, 2, 1, 2], 2, 2, id="one launch less"),
        pytest.param([1, 1, 2, 1], 2, None, id="more on one call"),
        pytest.param([1, 0], 1, 1, id="one set"),
        pytest.param([], 3, None, id="a driver that cannot be asked"),
    ],
)
def test_every_captured_call_adds_as_much(added: list[int], sets: int, skipped: int | None) -> None:
    assert find_skipped_work(added, sets) == skipped
    if skipped is None:
        expect_equal_launches(added, sets)
        return
    with pytest.raises(WrongResultError) as wrong:
        expect_equal_launches(added, sets)
    assert wrong.value.fault is Fault.SKIPPED_LAUNCH


class _Timer:
    """Takes one time after the other."""

    placements = 1

    def __init__(self, times_ns: Iterator[float]) -> None:
        self._times_ns = times_ns

    def take(self) -> list[float]:
        return [next(self._times_ns)]


@pytest.mark.parametrize(
    ("calls_ns", "caught"),
    [
        pytest.param([], False, id="they agree at once"),
        pytest.param([1_000, 8_000], False, id="once by chance"),
        pytest.param([1_000, 1_000, 8_000], False, id="twice by chance"),
        pytest.param([1_000, 1_000, 1_000, 8_000], True, id="three times"),
    ],
)
def test_timers_disagree_only_when_they_do_each_time(calls_ns: list[float], caught: bool, monkeypatch: Any) -> None:
    """Of a call whose kernels are busy for 10 µs."""
    first, *later = calls_ns or [8_000.0]
    times = {"call": iter(later), "kernel": itertools.repeat(10_000.0)}
    monkeypatch.setattr(bench, "open_timer", lambda _problem, _seed, metric, *_: _Timer(times[metric]))
    testimony, problem = CallTimes({"call": first, BUSY: 10_000.0}), gathering(None, lambda x, index: x[index])
    if caught:
        with pytest.raises(WrongResultError) as wrong:
            bench._expect_agreement(problem, 1, testimony)
        assert wrong.value.fault is Fault.TIMES_DISAGREE
    else:
        seen = bench._expect_agreement(problem, 1, testimony)
        assert seen.times["call"] == 8_000
    assert list(times["call"]) == ([8_000] if caught else []), "no time is taken without need"


def test_without_a_driver_no_node_is_counted() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a driver")
    graph = CapturedGraph()
    assert (graph.count_nodes(), graph.count_work()) == (None, None)


@pytest.mark.parametrize(
    ("new", "repeated", "timed", "caught"),
    [
        pytest.param([78_000] * 14, [77_000] * 14, [76_000] * 14, False, id="honest"),
        pytest.param([78_000] * 14, [14_000] * 14, [13_000] * 14, True, id="leaves on known numbers"),
        pytest.param([78_000] * 14, [77_000] * 14, [10_000] * 14, True, id="leaves on known buffers"),
        pytest.param([11_000] * 14, [6_000] * 14, [4_000] * 14, False, id="launches dominate"),
        pytest.param(
            [300_000, *[78_000] * 13], [77_000] * 14, [76_000] * 14, False, id="a neighbour delays one replay"
        ),
        pytest.param([200_000, 190_000, *[78_000] * 12], [77_000] * 14, [76_000] * 14, False, id="and then no more"),
    ],
)
def test_replays_on_known_numbers_are_no_faster(
    new: list[float], repeated: list[float], timed: list[float], caught: bool
) -> None:
    clocks: list[Iterator[float]] = [iter(new), iter(repeated), iter(timed)]
    takes = [lambda clock=clock: next(clock) for clock in clocks]
    if caught:
        with pytest.raises(WrongResultError) as wrong:
            expect_work_in_replays(*takes)
        assert wrong.value.fault is Fault.CACHED_RESULT
    else:
        assert expect_work_in_replays(*takes).new_ns == min(new)


def test_a_long_pass_is_timed_once() -> None:
    taken: list[float] = []

    def take() -> float:
        taken.append(2.4e8)
        return taken[-1]

    assert expect_work_in_replays(take, take, take) == ReplayTimes(2.4e8, 2.4e8, 2.4e8)
    assert len(taken) == 3


def test_time_in_which_anything_runs() -> None:
    assert union_ns([(0, 10), (10, 20)]) == 20
    assert union_ns([(0, 10), (5, 8), (9, 30), (40, 50)]) == 40
    assert union_ns([]) == 0


def make_problem(prepare: Any, function: Any, n: int = 64) -> CaseProblem:
    operator = Operator(
        "product",
        "a @ b",
        inputs=lambda given, make: {"a": make.normal(given["n"], given["n"]), "b": make.normal(given["n"], given["n"])},
        reference=lambda a, b: a @ b,
        cost=lambda given: Cost(2 * given["n"] ** 3, 12 * given["n"] ** 2),
        cases={"quick": (case(n=n),)},
    )
    operator.variant("tested", idea="", prepare=prepare)(function)
    return CaseProblem(operator, operator.variants["tested"], case(n=n), torch.device("cpu"))


def judge(prepare: Any, function: Any, n: int = 64) -> bool:
    problem = make_problem(prepare, function, n)
    with problem.modes():
        return expect_no_answer(problem)


HONEST = {
    "nothing": (None, lambda a, b: a @ b, True),
    "a plan": (lambda a, b: {"half": 32}, lambda a, b, half: a @ b, True),
    "a format": (lambda a, b: {"columns": b.mT.contiguous()}, lambda a, b, columns: a @ columns.mT, True),
    "inputs in other memory": (
        lambda a, b: {"moved": (a.clone(), b.clone())},
        lambda a, b, moved: moved[0] @ moved[1],
        True,
    ),
    "half the work": (
        lambda a, b: {"halves": (a / 2, b / 2)},
        lambda a, b, halves: 4 * (halves[0] @ halves[1]),
        False,
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_formats_and_plans_are_no_answers(name: str) -> None:
    prepare, function, is_amortised = HONEST[name]
    # Large enough that a product takes much longer than a copy.
    assert judge(prepare, function, 256) is is_amortised


@pytest.mark.parametrize(("call_ns", "is_accused"), [(50_000, False), (15_000, True)])
def test_a_copy_that_others_made_slow_accuses_no_call_after_it(
    call_ns: int, is_accused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others run beside the first five runs of a copy of 10 µs, of the call and of a reference of 400 µs."""
    turns = itertools.count()
    true_ns = {"copy": 10_000, "reference": 400_000}

    def elapsed_ns(_problem: CaseProblem, run: Any) -> float:
        return true_ns.get(getattr(run, "__name__", ""), call_ns) * (100 if next(turns) < 5 else 1)

    def reference() -> None: ...

    monkeypatch.setattr(CaseProblem, "own_call", lambda _problem, _data: reference)
    monkeypatch.setattr(preparation, "_elapsed_ns", elapsed_ns)
    prepare, function, _ = HONEST["half the work"]
    if is_accused:
        with pytest.raises(WrongResultError, match=r"takes 15.0 µs where a copy of the result takes 10.0 µs"):
            judge(prepare, function)
    else:
        assert not judge(prepare, function)


def test_a_sample_says_how_much_of_it_is_prepare() -> None:
    prepare, function, _ = HONEST["half the work"]
    problem = make_problem(prepare, function)
    reply = bench.Prepared(problem, 0, 1_000_000, TamperGuard()).sample()
    assert 0 < reply.prepare_ns <= min(reply.samples_ns)
    assert bench.Prepared(make_problem(None, lambda a, b: a @ b), 0, 1_000_000, TamperGuard()).sample().prepare_ns == 0


@pytest.mark.parametrize("unused", [1, 2**22])
def test_where_the_answer_is_an_input_a_copy_is_a_format(unused: int) -> None:
    """However long the harness takes to copy what the reference does not use."""
    operator = Operator(
        "shifted",
        "2 x + 1",
        inputs=lambda given, make: {"x": make.normal(given["n"]), "rest": make.normal(unused)},
        reference=lambda x, rest: 2 * x + 1,
        cost=lambda given: Cost(2 * given["n"], 8 * given["n"]),
        cases={"quick": (CASE,)},
    )
    operator.variant("copies", idea="", prepare=lambda x, rest: {"copy": x.clone()})(lambda x, rest, copy: 2 * copy + 1)
    problem = CaseProblem(operator, operator.variants["copies"], CASE, torch.device("cpu"))
    with problem.modes():
        assert expect_no_answer(problem)


def gathering(prepare: Any, function: Any) -> CaseProblem:
    """y = x[index] by a variant that gets the index and what it prepared of it."""
    operator = Operator(
        "gather",
        "x[index]",
        inputs=lambda given, make: {"x": make.normal(given["n"]), "index": make.integers(0, given["n"], given["n"])},
        reference=lambda x, index: x[index],
        cost=lambda given: Cost(0, 16 * given["n"]),
        cases={"quick": (CASE,)},
    )
    operator.variant("tested", idea="", prepare=prepare)(function)
    return CaseProblem(operator, operator.variants["tested"], CASE, torch.device("cpu"))


def test_offsets_that_were_prepared_are_called_with_the_indices_that_they_belong_to() -> None:
    """A kernel that relies on them would read outside its memory."""

    def gather(x: Tensor, index: Tensor, order: Tensor) -> Tensor:
        assert bool((index[order].diff() >= 0).all()), "the order is that of other indices"
        y = torch.empty_like(x)
        y[order] = x[index[order]]
        return y

    problem = gathering(lambda x, index: {"order": index.argsort()}, gather)
    with problem.modes():
        assert expect_no_answer(problem)


def test_an_answer_is_found_beside_indices() -> None:
    problem = gathering(lambda x, index: {"kept": [x[index]]}, lambda x, index, kept: kept[0].clone())
    with problem.modes(), pytest.raises(WrongResultError) as wrong:
        expect_no_answer(problem)
    assert wrong.value.fault == Fault.PREPARED_ANSWER


class Holder:
    def __init__(self, value: Tensor) -> None:
        self.value = value


HIDDEN = {
    "an argument": (lambda a, b: {"y": a @ b}, lambda a, b, y: y.clone()),
    "an object": (lambda a, b: {"plan": Holder(a @ b)}, lambda a, b, plan: plan.value.clone()),
    "another sign": (lambda a, b: {"hint": -(a @ b)}, lambda a, b, hint: -hint),
    "columns": (lambda a, b: {"hint": (a @ b).mT.contiguous()}, lambda a, b, hint: hint.mT.contiguous()),
    "one vector": (lambda a, b: {"hint": (a @ b).flatten()}, lambda a, b, hint: hint.view(a.shape).clone()),
}


@pytest.mark.parametrize("place", HIDDEN)
def test_an_answer_is_found_where_it_hides(place: str) -> None:
    with pytest.raises(WrongResultError) as wrong:
        judge(*HIDDEN[place])
    assert (wrong.value.fault, wrong.value.subjects) == (Fault.PREPARED_ANSWER, ["y"])


def test_numbers_are_rewritten_in_place_and_stay() -> None:
    problem = make_problem(None, lambda a, b: a @ b)
    with problem.modes():
        rotation = Rotation(problem, 0, 3)
        before = [data.clone() for data in rotation.sets]
        rotation.rewrite()
        assert all(now.changed_since(then) is None for now, then in zip(rotation.sets, before, strict=True))
        assert rotation.can_roll
        rotation.roll()
        assert all(now.changed_since(then) for now, then in zip(rotation.sets, before, strict=True))
        assert not Rotation(problem, 0, 1).can_roll


@pytest.mark.parametrize(("chosen", "wiped"), [([], {0, 2, 4}), ([3], {3})])
def test_results_that_are_looked_at_are_wiped_and_inputs_stay(chosen: list[int], wiped: set[int]) -> None:
    problem = make_problem(None, lambda a, b: a @ b)
    with problem.modes():
        rotation = Rotation(problem, 0, 5)
        before = [data.clone() for data in rotation.sets]
        results = {index: [call(), rotation.sets[index].inputs["a"]] for index, call in enumerate(rotation.calls)}
        rotation.wipe(results, chosen)
    assert {index for index, (result, _) in results.items() if result.isnan().all()} == wiped
    assert all(now.changed_since(then) is None for now, then in zip(rotation.sets, before, strict=True))
