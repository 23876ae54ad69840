"""A comparison without rounds says by its reason whether the head, the base or neither is the cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import truediv
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.worker.conftest import Diary
from warpwatch.contract.catalogue import CaseEntry, OperatorEntry, VariantEntry
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.environment import Environment
from warpwatch.contract.messages import SampleReply
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.rounds import StopRule
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, Reason, Status
from warpwatch.worker import comparison
from warpwatch.worker.checkout import Checkout, OperatorSources
from warpwatch.worker.child import Child
from warpwatch.worker.comparison import _Rounds, certain_rounds, compare, plan_slices, turns_of
from warpwatch.worker.plan import JobPlan, with_pairs
from warpwatch.worker.reporter import BoundedReporter, CannotRunError, Stopped

PAIR = ("v1", "n=1")
REQUEST = JobRequest(JobKind.COMPARE, "/srv/kernels", "b" * 40, "square", JobSpec(pairs=[PAIR]), "a" * 40)


def side(name: str, status: Status, kind: str = "cpu") -> Any:
    """One commit, every step of which ends with `status`."""
    checkout = SimpleNamespace(host=SimpleNamespace(kind=kind), running=False)
    return SimpleNamespace(name=name, checkout=checkout, ask=lambda *_, **__: SampleReply(status, "a message"))


@pytest.mark.parametrize(
    ("base", "head", "reason"),
    [(Status.CRASHED, Status.OK, Reason.BASE_FAILED), (Status.OK, Status.CRASHED, None)],
)
def test_a_failure_of_the_base_is_not_one_of_the_head(base: Status, head: Status, reason: Reason | None) -> None:
    rounds = _Rounds(REQUEST, side("base", base), side("head", head), BoundedReporter(Diary()))
    rounds._round(PAIR, 0, ["hot"])
    (comparison,) = rounds._comparisons.values()
    assert (comparison.status, comparison.reason, comparison.base_ns) == (Status.CRASHED, reason, [])
    assert from_json(Comparison, to_json(comparison)) == comparison


@pytest.mark.parametrize(
    ("kind", "stop", "rounds"),
    [
        ("cuda", StopRule(3, 1.005), [3, 1, 2, 2, 2, 2]),
        ("cuda", StopRule(4, 1.005), [3, 1, 2, 2, 2, 2]),
        ("cuda", None, [3, 3, 3, 3]),
        ("cpu", StopRule(3, 1.005), [1] * 12),
    ],
)
def test_children_start_for_the_rounds_that_surely_follow(kind: str, stop: StopRule | None, rounds: list[int]) -> None:
    request = replace(REQUEST, spec=replace(REQUEST.spec, stop=stop, rounds=12))
    index, certain = 0, []
    while index < 12:
        certain.append(certain_rounds(request.spec, index, kind))
        index += certain[-1]
    assert certain == rounds


def test_the_smallest_case_of_each_direction_and_precision_is_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed: list[tuple[str, str]] = []
    monkeypatch.setattr(comparison, "rehearse_at_once", lambda _all, _operator, *pair: rehearsed.append(pair[:2]))
    kinds = [
        ("large", "fwd", "f32", 9),
        ("small", "fwd", "f32", 3),
        ("back", "bwd", "f32", 9),
        ("half", "fwd", "f16", 9),
    ]
    entries = {key: CaseEntry(key, {}, precision, way, "", [], 1, size) for key, way, precision, size in kinds}
    head = side("head", Status.OK, "cuda")
    head.entry_of = entries.get
    rounds = _Rounds(REQUEST, side("base", Status.OK, "cuda"), head, BoundedReporter(Diary()))
    rounds._rehearse([*(("v1", case) for case in (*entries, "unknown")), ("v2", "small")])
    assert rehearsed == [("v1", "small"), ("v1", "back"), ("v1", "half")]


def slices(stop: StopRule | None, pairs: int = 1, kind: str = "cpu", budget_ns: int = 300_000_000) -> float:
    """Nanoseconds of a slice."""
    spec = JobSpec(pairs=[PAIR] * pairs, stop=stop, budget_ns=budget_ns, rounds=None if stop is None else 100)
    return truediv(*plan_slices(spec, kind))


def test_slices_are_short_where_the_time_is_limited() -> None:
    limit = StopRule(6, 1.02, seconds=6.0)
    assert slices(None) == slices(StopRule(6, 1.02, 6.0), kind="cuda") == 25e6
    assert 25e6 > slices(limit) > slices(limit, pairs=4) > slices(limit, pairs=1000) == 1e6
    assert slices(limit, budget_ns=12) == 1, "the budget is a limit too"
    count = len(turns_of(0, "cpu", is_limited=True))
    assert 12 * 4 * count * slices(limit, pairs=4) == pytest.approx(6e9 / 2, rel=0.01), (
        "half of the time is for samples"
    )


class BlindSide:
    """A side that takes the same time whether it waits or not, so that it excludes no change. asked: every verb."""

    def __init__(self, name: str, asked: list[str], ns: float = 100_000.0) -> None:
        self.name, self._asked, self._ns = name, asked, ns
        host = SimpleNamespace(kind="cpu")
        self.checkout = SimpleNamespace(
            host=host,
            running=False,
            start_spares=lambda *_: None,
            retire_child=lambda: None,
            take_retired=list,
            take_spares=list,
        )
        self.measurer = SimpleNamespace(measure=self._measure)

    def entry_of(self, _case: str) -> None:
        return None

    def ask(self, verb: str, *_: Any, **__: Any) -> SampleReply:
        self._asked.append(verb)
        return SampleReply(Status.OK, "", [self._ns], "graph")

    def send(self, verb: str, *_: Any, **__: Any) -> Callable[[], SampleReply]:
        return partial(self.ask, verb)

    def _measure(self, kind: str, *_: str) -> Finding:
        self._asked.append(kind)
        return Finding(*PAIR, Status.OK)


def take(monkeypatch: pytest.MonkeyPatch, asked: list[str], seconds: float | None, head_ns: float) -> Comparison:
    """A comparison of at most twenty rounds, each of which takes a second."""
    clock = iter(range(1000))
    monkeypatch.setattr(comparison, "load_at_once", lambda *_: None)
    monkeypatch.setattr(comparison, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    request = replace(REQUEST, spec=replace(REQUEST.spec, stop=StopRule(6, 1.005, seconds), rounds=20))
    base: Any = BlindSide("base", asked)
    head: Any = BlindSide("head", asked, head_ns)
    outcome = _Rounds(request, base, head, BoundedReporter(Diary())).run(Outcome(Environment("", "cpu", "", "", {})))
    return outcome.comparisons[0]


@pytest.mark.parametrize(
    ("seconds", "rounds"), [(None, 20), (1.0, 6), (6.5, 6), (9.5, 8)], ids=["no limit", "short", "six", "eight"]
)
def test_rounds_end_with_their_time(monkeypatch: pytest.MonkeyPatch, seconds: float | None, rounds: int) -> None:
    asked: list[str] = []
    assert len(take(monkeypatch, asked, seconds, 100_000.0).base_ns) == rounds
    assert asked.count("prepare") == 2 * rounds
    assert asked.count("finish") == (2 if seconds else 2 * rounds), "the first of limited rounds is verified"


def test_a_change_comes_without_traces_where_the_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, traces in ((None, 2), (1.0, 0)):
        asked: list[str] = []
        assert len(take(monkeypatch, asked, seconds, 103_000.0).base_ns) == 6
        assert asked.count("profile") == traces


def compare_stepwise(rounds: int, diary: Diary, earlier: list[Comparison] | None = None) -> Outcome:
    """A comparison of `rounds` rounds, which goes on from those of an earlier run."""
    base: Any = BlindSide("base", [])
    head: Any = BlindSide("head", [], 103_000.0)
    request = replace(REQUEST, spec=replace(REQUEST.spec, rounds=rounds))
    taken = _Rounds(request, base, head, BoundedReporter(diary))
    taken.take_over(earlier or [])
    return taken.run(Outcome(Environment("", "cpu", "", "", {})))


def test_a_comparison_makes_room_between_two_rounds_and_goes_on_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "load_at_once", lambda *_: None)
    (whole,) = compare_stepwise(8, Diary()).comparisons
    with pytest.raises(Stopped) as stopped:
        compare_stepwise(8, Diary(urgent=(0, 7)))
    assert stopped.value.yielded_to == 7
    assert stopped.value.outcome is not None
    (part,) = stopped.value.outcome.comparisons
    assert len(part.ratios) == len(part.again) == 1, "a run takes one round at least"
    diary = Diary()
    assert compare_stepwise(8, diary, [part]).comparisons == [whole]
    assert [step for step, _, text in diary.steps if text] == list(range(1, 8)), "no round is taken twice"
    assert compare_stepwise(8, Diary(), [replace(part, protocol="0")]).comparisons == [whole]
    diary = Diary()
    assert compare_stepwise(8, diary, [whole]).comparisons == [whole]
    assert not [text for _, _, text in diary.steps if text], "all rounds are there"


def explained(*comparisons: Comparison) -> list[tuple[str, str]]:
    """The pairs that get traces after these rounds."""
    rounds = _Rounds(REQUEST, side("base", Status.OK), side("head", Status.OK), BoundedReporter(Diary()))
    rounds._comparisons = {(item.variant, item.case, item.metric): item for item in comparisons}
    return rounds._explained()


def compared(variant: str, case: str, head_ns: float, status: Status = Status.OK) -> Comparison:
    return Comparison(variant, case, "graph", "2", status, base_ns=[100.0] * 3, head_ns=[head_ns] * 3)


def test_of_every_variant_the_largest_changes_get_traces() -> None:
    v1 = [compared("v1", "a", 103.0), compared("v1", "b", 110.0), compared("v1", "c", 98.0), compared("v1", "d", 96.0)]
    broken, v2 = compared("v2", "b", 150.0, Status.WRONG), compared("v2", "a", 101.0)
    assert explained(*v1, broken, v2) == [("v1", "b"), ("v1", "d"), ("v2", "a")]


def test_different_interpreters_are_not_compared(tmp_path: Path) -> None:
    keys = iter(("one interpreter", "another interpreter"))
    taken: list[str] = []

    def spares() -> list[Child]:
        taken.append("old children")
        return []

    checkouts = [
        SimpleNamespace(
            environment=lambda reporter, key=key: SimpleNamespace(key=key),
            running=True,
            host=SimpleNamespace(kind="cpu", device="cpu", last_canary=None),
            start_spares=lambda *_: taken.append("new children"),
            take_spares=spares,
            take_retired=list,
        )
        for key in keys
    ]
    base, head = cast("list[Checkout]", checkouts)
    tools: Any = SimpleNamespace()
    with pytest.raises(CannotRunError) as caught:
        compare(JobPlan(REQUEST, (base, head), OperatorSources(), tmp_path), tools, BoundedReporter(Diary()))
    assert (caught.value.reason, caught.value.retry) == (Reason.INTERPRETER_MISMATCH, False)
    assert taken == ["old children"] * 2 + ["new children"] * 2, "those of one side are as old as those of the other"


def test_a_comparison_without_pairs_takes_all_that_the_head_has() -> None:
    variants = [VariantEntry(name, "", "", [kind], native=False) for name, kind in (("v1", "cpu"), ("v2", "cuda"))]
    cases = [
        CaseEntry(f"n={n}", {}, "f32", "fwd", "contiguous", [suite], 1, 1) for n, suite in ((1, "quick"), (2, "full"))
    ]
    entry = OperatorEntry("square", "", variants, cases)
    head: Any = SimpleNamespace(catalogue=lambda *_: (None, entry), host=SimpleNamespace(kind="cpu"))

    def pairs(**spec: Any) -> list[tuple[str, str]]:
        plan = JobPlan(replace(REQUEST, spec=JobSpec(**spec)), (head, head), OperatorSources(), Path())
        return with_pairs(plan, Diary()).request.spec.pairs or []

    assert pairs() == [("v1", "n=1")]
    assert pairs(cases=["n=2"]) == [("v1", "n=2")]
    with pytest.raises(CannotRunError):
        pairs(variants=["v2"])
