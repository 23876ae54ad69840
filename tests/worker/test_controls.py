"""The controls of a comparison: the base against itself, and against itself with a wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import geometric_mean
from types import SimpleNamespace
from typing import Any

import pytest

from tests.worker.conftest import Diary
from tests.worker.test_comparison import PAIR, REQUEST
from warpwatch.contract.catalogue import CaseEntry
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.messages import GraphPlan, SampleReply
from warpwatch.contract.outcome import Comparison
from warpwatch.contract.rounds import CONFIRMED, WAITS, StopRule, judge_controls
from warpwatch.contract.words import Reason, Status
from warpwatch.server.verdicts.held import classify_pairs, classify_trial
from warpwatch.server.verdicts.paired import decide
from warpwatch.worker.comparison import _Rounds, list_undecided
from warpwatch.worker.reporter import BoundedReporter

SAME, SLOWER = [100_000.0] * 12, [102_000.0] * 12


@pytest.mark.parametrize(
    ("again", "waited", "reason"),
    [
        pytest.param([1.0, 1.001, 0.999], [1.01, 1.011, 1.009], None, id="both as planned"),
        pytest.param([1.03, 1.04, 1.05], [1.01] * 3, Reason.CONTROL_MOVED, id="the base is slower than itself"),
        pytest.param([0.95, 0.96, 0.97], [1.01] * 3, Reason.CONTROL_MOVED, id="the base is faster than itself"),
        pytest.param([1.006] * 3, [1.01] * 3, None, id="three rounds confirm no half percent"),
        pytest.param([1.006] * 12, [1.01] * 12, Reason.CONTROL_MOVED, id="twelve do"),
        pytest.param([1.0] * 3, [1.01, 1.0, 1.02], Reason.CONTROL_MISSED, id="the wait is not found"),
        pytest.param([1.0] * 12, [1.0] * 12, Reason.CONTROL_MISSED, id="a clock that stands"),
        pytest.param([1.2, 1.2], [1.0, 1.0], None, id="too few rounds"),
        pytest.param([], [], None, id="a program has no controls"),
    ],
)
def test_controls_speak_against_rounds(again: list[float], waited: list[float], reason: Reason | None) -> None:
    assert judge_controls(again, waited, "cuda") is reason


@pytest.mark.parametrize(
    ("again", "ratio", "reason"),
    [
        pytest.param([0.5, 2.0] * 6, 0.67, Reason.CONTROL_MOVED, id="the base jumps by more than the change"),
        pytest.param([0.97, 1.03] * 6, 1.05, None, id="the change is larger than the noise"),
        pytest.param([0.97, 1.03] * 6, 1.0, None, id="there is no change to doubt"),
    ],
)
def test_a_base_that_jumps_by_more_than_the_change_shows_none(
    again: list[float], ratio: float, reason: Reason | None
) -> None:
    assert judge_controls(again, [1.04] * 12, "cpu", [ratio] * 12) is reason


def test_the_wait_is_twice_what_is_confirmed() -> None:
    assert {kind: 2 * (ratio - 1) for kind, ratio in CONFIRMED.items()} == pytest.approx(WAITS)


@pytest.mark.parametrize(
    ("head_ns", "reason", "outcome", "decision"),
    [
        (SAME, None, "same", "dismissed"),
        (SAME, Reason.CONTROL_MISSED, "unsure", "unsure"),
        (SAME, Reason.CONTROL_MOVED, "unsure", "unsure"),
        (SLOWER, None, "slower", "confirmed"),
        # What lies beyond the boundary needs no finer eye than the rounds have.
        (SLOWER, Reason.CONTROL_MISSED, "slower", "confirmed"),
        (SLOWER, Reason.CONTROL_MOVED, "unsure", "unsure"),
    ],
)
def test_there_is_no_verdict_against_the_controls(
    head_ns: list[float], reason: Reason | None, outcome: str, decision: str
) -> None:
    assert classify_pairs(SAME, head_ns, "cuda", reason=reason).outcome == outcome
    assert classify_trial(SAME, head_ns, "cuda", reason).outcome == outcome
    assert decide(SAME, head_ns, "slower", 1.02, "cuda", reason).decision == decision


class Side:
    """A commit whose slices take `ns`, as many more per slice as `drift`, and longer by a wait that it is asked for."""

    def __init__(self, name: str, kind: str, ns: float, drift: float = 0.0, *, waits: bool = True) -> None:
        self.name, self.ns, self.drift, self.waits = name, ns, drift, waits
        self.checkout = SimpleNamespace(host=SimpleNamespace(kind=kind), running=False)
        self.asked: list[tuple[str, float]] = []
        self.bytes = 1

    def ask(self, verb: str, _variant: str, _case: str, _budget: int, _rounds: int, wait: float = 0.0) -> SampleReply:
        self.asked.append((verb, wait))
        self.ns *= 1 + self.drift
        return SampleReply(Status.OK, "", [self.ns * (1 + wait * self.waits)], "graph")

    def send(self, verb: str, *names: Any, plan: GraphPlan | None = None) -> Callable[[], SampleReply]:
        assert plan is None
        return partial(self.ask, verb, *names)

    def entry_of(self, case: str) -> CaseEntry:
        return CaseEntry(case, {}, "f32", "fwd", "contiguous", ["quick"], 1, self.bytes)


class PlannedSide(Side):
    """A side that reports what it plans; `diary` gets what both do, in order."""

    def __init__(self, name: str, diary: list[str], plan: GraphPlan | None, failing: Status | None = None) -> None:
        super().__init__(name, "cuda", 100.0)
        self._diary, self._plan, self._failing = diary, plan, failing

    def ask(self, verb: str, variant: str, case: str, budget: int, rounds: int, wait: float = 0.0) -> SampleReply:
        if verb != "sample":
            self._diary.append(f"{self.name} {verb}")
        return replace(super().ask(verb, variant, case, budget, rounds, wait), plan=self._plan)

    def send(self, verb: str, *names: Any, plan: GraphPlan | None = None) -> Callable[[], SampleReply]:
        assert (verb, plan) in {("prepare", self._plan), ("finish", None)}
        self._diary.append(f"{self.name} begins to {verb}")

        def receive() -> SampleReply:
            self._diary.append(f"{self.name} did {verb}")
            return SampleReply(self._failing or Status.OK, "no room", metric="graph")

        return receive


def compare(base: Side, head: Side, rounds: int = 3, stop: StopRule | None = None) -> tuple[Comparison, _Rounds]:
    sides: Any = base, head
    request = replace(REQUEST, spec=replace(REQUEST.spec, stop=stop))
    taken = _Rounds(request, sides[0], sides[1], BoundedReporter(Diary()))
    comparison = Comparison(*PAIR, "graph", "1", Status.OK)
    for index in range(rounds):
        comparison = taken._round(comparison, index)
    return comparison, taken


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_every_round_measures_the_base_with_a_wait(kind: str) -> None:
    base, head = Side("base", kind, 100.0), Side("head", kind, 110.0)
    comparison, _ = compare(base, head)
    assert comparison.reason is None
    assert comparison.again == [1.0] * 3
    assert comparison.waited == pytest.approx([1 + WAITS[kind]] * 3)
    assert comparison.ratios == pytest.approx([1.1] * 3)
    slices = [wait for verb, wait in (*base.asked, *head.asked) if verb == "sample"]
    assert 0 < sum(wait > 0 for wait in slices) / len(slices) <= 0.3
    assert from_json(Comparison, to_json(comparison)) == comparison


class BusySide(Side):
    """A side of a busy CPU, which lets a process wait the longer the more it ran in the last five slices. ran: the
    names of the sides in the order of their slices."""

    def __init__(self, name: str, ran: list[str]) -> None:
        super().__init__(name, "cpu", 100.0)
        self._ran = ran

    def ask(self, verb: str, *names: Any) -> SampleReply:
        self.ns = 100.0 * (1 + 0.1 * self._ran[-5:].count(self.name))
        if verb == "sample":
            self._ran.append(self.name)
        return super().ask(verb, *names)


@pytest.mark.parametrize("seconds", [None, 6.0])
def test_a_busy_cpu_slows_both_sides_alike(seconds: float | None) -> None:
    """With all waits on the base, it ran in three of five slices, and identical code looked 8 % faster."""
    ran: list[str] = []
    comparison, _ = compare(BusySide("base", ran), BusySide("head", ran), 12, StopRule(6, 1.02, seconds))
    assert ran.count("base") == ran.count("head")
    assert geometric_mean(comparison.ratios) == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize("is_small", [True, False])
def test_both_sides_prepare_at_once_by_the_plans_of_the_first_round_and_verify_what_is_small(is_small: bool) -> None:
    diary: list[str] = []
    sides = [
        PlannedSide(name, diary, GraphPlan(*plan)) for name, plan in (("base", (8, 6, 16, 2)), ("head", (8, 6, 8, 4)))
    ]
    sides[1].bytes = 1 if is_small else 2**30
    compare(sides[0], sides[1], rounds=2)
    first, second = ["base", "head"], ["head", "base"]

    def verified(names: list[str]) -> list[str]:
        if not is_small:
            return [f"{name} finish" for name in names]
        return [f"{name} {step} finish" for step in ("begins to", "did") for name in names]

    assert diary == [
        *(f"{name} prepare" for name in first),
        *(f"{name} testify" for name in first),
        *verified(first),
        *(f"{name} {step} prepare" for step in ("begins to", "did") for name in second),
        *(f"{name} testify" for name in second),
        *verified(second),
    ]


def test_sides_that_time_something_prepare_one_after_the_other() -> None:
    diary: list[str] = []
    compare(PlannedSide("base", diary, GraphPlan(8, 6, 16, 2)), PlannedSide("head", diary, None), rounds=2)
    assert [line for line in diary if line.endswith(" prepare")] == [
        f"{name} prepare" for name in ("base", "head", "head", "base")
    ]


def test_a_side_that_cannot_prepare_beside_the_other_ends_the_comparison() -> None:
    diary: list[str] = []
    plan = GraphPlan(8, 6, 16, 2)
    head = PlannedSide("head", diary, plan, Status.OUT_OF_MEMORY)
    comparison, _ = compare(PlannedSide("base", diary, plan), head, rounds=2)
    assert (comparison.status, comparison.message) == (Status.OUT_OF_MEMORY, "head: no room")
    assert diary[-1] == "base did prepare"


def test_a_base_that_ignores_the_wait_excludes_nothing() -> None:
    rule = StopRule(3, 1.005)
    blind, _ = compare(Side("base", "cuda", 100.0, waits=False), Side("head", "cuda", 100.0), stop=rule)
    seeing, _ = compare(Side("base", "cuda", 100.0), Side("head", "cuda", 100.0), stop=rule)
    assert (blind.reason, seeing.reason) == (Reason.CONTROL_MISSED, None)
    assert list_undecided({PAIR: blind}, rule) == [PAIR]
    assert list_undecided({PAIR: seeing}, rule) == []


def test_a_base_that_moves_decides_nothing() -> None:
    rule = StopRule(3, 1.005)
    moved, _ = compare(Side("base", "cuda", 100.0, drift=0.05), Side("head", "cuda", 150.0), stop=rule)
    assert moved.reason is Reason.CONTROL_MOVED
    assert list_undecided({PAIR: moved}, rule) == [PAIR]


@pytest.mark.parametrize("ratios", [{"again": [0.0]}, {"waited": [float("nan")]}, {"again": [float("inf")]}])
def test_ratios_that_no_device_can_show_are_refused(ratios: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="again, waited"):
        Comparison(*PAIR, "graph", "1", Status.OK, **ratios)  # type: ignore[arg-type]
