"""The controls of a comparison: the base against itself, and against itself with a wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from warpwatch.contract.rounds import CONFIRMED, StopRule, judge_controls, launch_ratio, wait_share
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
    assert judge_controls(again, waited, CONFIRMED["cuda"]) is reason


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
    assert judge_controls(again, [1.04] * 12, CONFIRMED["cpu"], [ratio] * 12) is reason


@pytest.mark.parametrize(
    ("base_ns", "ratio"),
    [
        pytest.param([], 1.05, id="no round yet"),
        pytest.param([100_000.0, 90_000.0, 300_000.0], 1.05, id="5 % of a long launch"),
        pytest.param([10_000.0] * 3, 1.2, id="2 µs of a short one"),
        pytest.param([1_000.0] * 3, 1.99, id="twice the shortest"),
    ],
)
def test_a_launch_changes_by_a_share_and_by_microseconds(base_ns: list[float], ratio: float) -> None:
    assert launch_ratio(base_ns) == pytest.approx(ratio)
    assert wait_share("cuda", "launch", base_ns) == pytest.approx(2 * (ratio - 1))
    rule = StopRule(3, 1.005, suspected=1.01)
    assert rule.of_metric("graph", base_ns) == rule
    least = launch_ratio(base_ns)
    assert rule.of_metric("launch", base_ns) == StopRule(3, least, suspected=least, plain=6)


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


FourNumbers = tuple[int, int, int, int]
PLAN = GraphPlan(8, 6, 16, 2, calls=8)
CORES = {"base": 3, "head": 5}


class Side:
    """A commit whose slices take `ns`, as many more per slice as `drift`, and longer by a wait that it is asked for.

    host_ns: of a launch, None where a call waits for the device. plan: that it would make. diary: gets every step but
    the samples, in order. failing: the status of `prepare`.
    """

    def __init__(self, name: str, kind: str, ns: float, drift: float = 0.0, *, waits: bool = True) -> None:
        self.name, self.ns, self.drift, self.waits = name, ns, drift, waits
        self.checkout = SimpleNamespace(host=SimpleNamespace(kind=kind), running=False)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.bytes = 1
        self.host_ns: float | None = 100_000.0
        self.plan, self.times_itself, self.has_kernel = PLAN, False, True
        self.diary: list[str] = []
        self.failing = Status.OK

    def ask(self, verb: str, *_names: Any, **fields: Any) -> SampleReply:
        if verb != "sample":
            self.diary.append(f"{self.name} {verb}")
        return self._answer(verb, fields)

    def send(self, verb: str, *_names: Any, **fields: Any) -> Callable[[], SampleReply]:
        self.diary.append(f"{self.name} begins to {verb}")

        def receive() -> SampleReply:
            self.diary.append(f"{self.name} did {verb}")
            return self._answer(verb, fields)

        return receive

    def _answer(self, verb: str, fields: dict[str, Any]) -> SampleReply:
        self.asked.append((verb, fields))
        if verb == "plan":
            if "kernel" in fields["metrics"] and self.has_kernel:
                self.plan = replace(self.plan, metric="kernel")
            return SampleReply(Status.OK, metric=self.plan.metric, plan=self.plan, times_itself=self.times_itself)
        if verb == "prepare":
            no_launch = "" if self.host_ns is not None else "it waits"
            return SampleReply(self.failing, "no room", metric=self.plan.metric, no_launch=no_launch)
        self.ns *= 1 + self.drift
        samples_ns = [self.ns * (1 + fields.get("wait", 0.0) * self.waits)]
        launch_ns = [] if self.host_ns is None else [self.host_ns * (1 + fields.get("launch_wait", 0.0))]
        core = fields.get("core") or CORES[self.name]
        return SampleReply(Status.OK, "", samples_ns, self.plan.metric, launch_ns=launch_ns, core=core)

    def entry_of(self, case: str) -> CaseEntry:
        return CaseEntry(case, {}, "f32", "fwd", "contiguous", ["quick"], 1, self.bytes)

    def prepared(self) -> list[dict[str, Any]]:
        """What it was asked to prepare, by round."""
        return [fields for verb, fields in self.asked if verb == "prepare"]


def rounds_of(base: Side, head: Side, rounds: int = 3, stop: StopRule | None = None) -> _Rounds:
    """The first rounds of a comparison of all metrics."""
    sides: Any = base, head
    request = replace(REQUEST, spec=replace(REQUEST.spec, stop=stop))
    taken = _Rounds(request, sides[0], sides[1], BoundedReporter(Diary()))
    for index in range(rounds):
        taken._round(PAIR, index, [metric for *_, metric in taken._comparisons])
    return taken


def test_launches_of_both_sides_take_turns_on_the_core_of_the_first() -> None:
    base, head = two_sides()
    base.host_ns = head.host_ns = 9000.0
    rounds_of(base, head, rounds=2)
    # One round begins with the base, and the next with the head.
    for side, cores in ((base, [None, 3, 3, 5, 5, 5]), (head, [3, 3, None, 5])):
        assert [fields["core"] for verb, fields in side.asked if verb == "sample"] == cores


def compare(base: Side, head: Side, rounds: int = 3, stop: StopRule | None = None) -> Comparison:
    """The comparison of the device's time."""
    return next(iter(rounds_of(base, head, rounds, stop)._comparisons.values()))


def two_sides(diary: list[str] | None = None) -> tuple[Side, Side]:
    """Two sides of a GPU that take the same times and write into one diary."""
    base, head = Side("base", "cuda", 100.0), Side("head", "cuda", 100.0)
    base.diary = head.diary = [] if diary is None else diary
    return base, head


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_every_round_measures_the_base_with_a_wait(kind: str) -> None:
    base, head = Side("base", kind, 100.0), Side("head", kind, 110.0)
    comparison = compare(base, head)
    assert comparison.reason is None
    assert comparison.again == [1.0] * 3
    assert comparison.waited == pytest.approx([1 + 2 * (CONFIRMED[kind] - 1)] * 3)
    assert comparison.ratios == pytest.approx([1.1] * 3)
    slices = [fields["wait"] for verb, fields in (*base.asked, *head.asked) if verb == "sample"]
    assert 0 < sum(wait > 0 for wait in slices) / len(slices) <= 0.3
    assert from_json(Comparison, to_json(comparison)) == comparison


class BusySide(Side):
    """A side of a busy CPU, which lets a process wait the longer the more it ran in the last five slices. ran: the
    names of the sides in the order of their slices."""

    def __init__(self, name: str, ran: list[str]) -> None:
        super().__init__(name, "cpu", 100.0)
        self._ran = ran

    def ask(self, verb: str, *names: Any, **fields: Any) -> SampleReply:
        self.ns = 100.0 * (1 + 0.1 * self._ran[-5:].count(self.name))
        if verb == "sample":
            self._ran.append(self.name)
        return super().ask(verb, *names, **fields)


@pytest.mark.parametrize("seconds", [None, 6.0])
def test_a_busy_cpu_slows_both_sides_alike(seconds: float | None) -> None:
    """With all waits on the base, it ran in three of five slices, and identical code looked 8 % faster."""
    ran: list[str] = []
    comparison = compare(BusySide("base", ran), BusySide("head", ran), 12, StopRule(6, 1.02, seconds))
    assert ran.count("base") == ran.count("head")
    assert geometric_mean(comparison.ratios) == pytest.approx(1, abs=0.005)


def test_the_host_has_a_comparison_of_its_own() -> None:
    base, head = two_sides()
    head.host_ns = 150_000.0
    device, launch = rounds_of(base, head)._comparisons.values()
    assert (device.metric, launch.metric) == ("graph", "launch")
    assert device.ratios == [1.0] * 3
    assert launch.ratios == [1.5] * 3
    assert launch.waited == pytest.approx([1.1] * 3)
    assert (device.reason, launch.reason) == (None, None)
    rule = StopRule(3, 1.005)
    assert list_undecided({("v1", "n=1", item.metric): item for item in (device, launch)}, rule) == []


@pytest.mark.parametrize(
    ("host_ns", "again"),
    [([90_000.0, 130_000.0], False), ([120_000.0, 104_000.0], False), ([109_000.0, 140_000.0], True)],
)
def test_launch_takes_rounds_of_its_own_only_where_it_seems_to_have_changed(host_ns: list[float], again: bool) -> None:
    """The times of a busy host exclude nothing after three rounds, and the device's exclude every change."""
    base, head = two_sides()
    taken = rounds_of(base, head, 0, StopRule(3, 1.005))
    for index, ns in enumerate([100_000.0, *host_ns]):
        head.host_ns = ns
        taken._round(PAIR, index, ["graph", "launch"])
    assert list_undecided(taken._comparisons, StopRule(3, 1.005)) == [(*PAIR, "launch")]
    head.host_ns = 100_000.0
    assert taken._list_open() == ([(*PAIR, "launch")] if again else [])
    if again:
        base.diary.clear()
        taken._round(PAIR, 3, ["launch"])
        assert head.prepared()[-1]["metrics"] == ["launch"]
        assert not [line for line in base.diary if line.endswith("testify")], "only graphs have replays to testify"
        assert [len(item.ratios) for item in taken._comparisons.values()] == [3, 4]


def test_a_launch_that_is_four_percent_longer_is_none() -> None:
    base, head = two_sides()
    head.host_ns = 104_000.0
    device, launch = rounds_of(base, head, 12)._comparisons.values()
    assert StopRule(3, 1.005).of_metric("launch", launch.base_ns).excludes_change(launch.ratios)
    head.ns = 104.0
    assert not StopRule(3, 1.005).of_metric("graph", device.base_ns).excludes_change(compare(base, head).ratios)


@pytest.mark.parametrize(
    ("waiting", "metrics", "message"),
    [
        (["base", "head"], ["graph"], ""),
        (["head"], ["graph", "launch"], "head: no launch: it waits"),
        (["base"], ["graph", "launch"], "base: no launch: it waits"),
    ],
)
def test_a_call_that_waits_for_the_device_has_no_launch(waiting: list[str], metrics: list[str], message: str) -> None:
    sides = two_sides()
    for side in sides:
        side.host_ns = None if side.name in waiting else side.host_ns
    device, *launches = rounds_of(*sides, rounds=1)._comparisons.values()
    assert [item.metric for item in (device, *launches)] == metrics
    assert (device.status, device.ratios) == (Status.OK, [1.0])
    assert [(item.status, item.message, item.ratios) for item in launches] == [
        (Status.UNSUPPORTED, message, []) for _ in metrics[1:]
    ]


def test_both_sides_follow_one_plan_whatever_each_would_plan() -> None:
    base, head = two_sides()
    base.plan, head.plan = GraphPlan(8, 6, 16, 2, 8), GraphPlan(10, 3, 200, 1, 4)
    compare(base, head, rounds=3)
    plans = {fields["plan"] for side in (base, head) for fields in side.prepared()}
    assert plans == {GraphPlan(8, 3, 16, 1, 4)}
    assert [verb for verb, _ in (*base.asked, *head.asked)].count("plan") == 2, "the first round plans for all"


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ((10, 6, 40, 9), (8, 6, 200, 2), (8, 6, 40, 2)),
        ((64, 1, 64, 1), (2, 6, 2, 1), (2, 1, 2, 1)),
        ((7, 6, 21, 3), (5, 6, 100, 3), (5, 6, 20, 3)),
    ],
)
def test_a_plan_for_both_is_no_larger_than_either(first: FourNumbers, second: FourNumbers, both: FourNumbers) -> None:
    """Each placement calls all sets equally often."""
    plans = GraphPlan(*first), GraphPlan(*second)
    assert plans[0] & plans[1] == plans[1] & plans[0] == GraphPlan(*both)
    with pytest.raises(ValueError, match="metric"):
        _ = plans[0] & replace(plans[1], metric="kernel")


@pytest.mark.parametrize("is_small", [True, False])
def test_both_sides_prepare_at_once_and_verify_what_is_small(is_small: bool) -> None:
    diary: list[str] = []
    sides = two_sides(diary)
    sides[1].bytes = 1 if is_small else 2**30
    compare(sides[0], sides[1], rounds=2)
    first, second = ["base", "head"], ["head", "base"]

    def at_once(verb: str, names: list[str]) -> list[str]:
        return [f"{name} {step} {verb}" for step in ("begins to", "did") for name in names]

    def taken(names: list[str]) -> list[str]:
        verified = at_once("finish", names) if is_small else [f"{name} finish" for name in names]
        return [*at_once("prepare", names), *(f"{name} testify" for name in names), *verified]

    assert diary == [*(f"{name} plan" for name in first), *taken(first), *taken(second)]


def test_sides_that_time_something_prepare_one_after_the_other() -> None:
    diary: list[str] = []
    base, head = two_sides(diary)
    head.times_itself = True
    compare(base, head, rounds=2)
    assert [line for line in diary if line.endswith("prepare")] == [
        f"{name} prepare" for name in ("base", "head", "head", "base")
    ]


def test_a_side_that_cannot_prepare_beside_the_other_ends_the_pair() -> None:
    diary: list[str] = []
    base, head = two_sides(diary)
    head.failing = Status.OUT_OF_MEMORY
    (comparison,) = rounds_of(base, head, rounds=1)._comparisons.values()
    assert (comparison.metric, comparison.status) == ("graph", Status.OUT_OF_MEMORY)
    assert (comparison.message, diary[-1]) == ("head: no room", "head did prepare")


def test_sides_of_two_metrics_are_measured_by_kernel() -> None:
    base, head = two_sides()
    head.plan, head.host_ns = replace(PLAN, metric="kernel"), None
    device, launch = rounds_of(base, head)._comparisons.values()
    assert (device.metric, device.status, device.ratios) == ("kernel", Status.OK, [1.0] * 3)
    assert (launch.status, launch.message) == (Status.UNSUPPORTED, "head: no launch: it waits")


def test_sides_that_plan_for_two_metrics_all_the_same_are_not_compared() -> None:
    base, head = two_sides()
    head.plan, head.has_kernel = replace(PLAN, metric="cold"), False
    (comparison,) = rounds_of(base, head, rounds=1)._comparisons.values()
    assert (comparison.status, comparison.reason) == (Status.UNSUPPORTED, None)
    assert comparison.message == "the base is measured as kernel, the head is measured as cold"
    assert base.prepared() == []


def test_a_base_that_ignores_the_wait_excludes_nothing() -> None:
    rule = StopRule(3, 1.005)
    blind = compare(Side("base", "cuda", 100.0, waits=False), Side("head", "cuda", 100.0), stop=rule)
    seeing = compare(Side("base", "cuda", 100.0), Side("head", "cuda", 100.0), stop=rule)
    assert (blind.reason, seeing.reason) == (Reason.CONTROL_MISSED, None)
    assert list_undecided({PAIR: blind}, rule) == [PAIR]
    assert list_undecided({PAIR: seeing}, rule) == []


def test_a_base_that_moves_decides_nothing() -> None:
    rule = StopRule(3, 1.005)
    moved = compare(Side("base", "cuda", 100.0, drift=0.05), Side("head", "cuda", 150.0), stop=rule)
    assert moved.reason is Reason.CONTROL_MOVED
    assert list_undecided({PAIR: moved}, rule) == [PAIR]


@pytest.mark.parametrize("ratios", [{"again": [0.0]}, {"waited": [float("nan")]}, {"again": [float("inf")]}])
def test_ratios_that_no_device_can_show_are_refused(ratios: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="again, waited"):
        Comparison(*PAIR, "graph", "1", Status.OK, **ratios)  # type: ignore[arg-type]
