"""A comparison without rounds says by its reason whether the head, the base or neither is the cause."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.worker.conftest import Diary
from warpwatch.contract.catalogue import CaseEntry, OperatorEntry, VariantEntry
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.messages import SampleReply
from warpwatch.contract.outcome import Comparison
from warpwatch.contract.rounds import StopRule
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, Reason, Status
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.comparison import _Rounds, compare
from warpwatch.worker.execution import _list_pairs
from warpwatch.worker.reporter import BoundedReporter, CannotRunError

PAIR = ("v1", "n=1")
REQUEST = JobRequest(JobKind.COMPARE, "/srv/kernels", "b" * 40, "square", JobSpec(pairs=[PAIR]), "a" * 40)


def side(name: str, status: Status, kind: str = "cpu") -> Any:
    """One commit, every step of which ends with `status`."""
    checkout = SimpleNamespace(host=SimpleNamespace(kind=kind), running=False)
    return SimpleNamespace(name=name, checkout=checkout, ask=lambda *_: SampleReply(status, "a message"))


@pytest.mark.parametrize(
    ("base", "head", "reason"),
    [(Status.CRASHED, Status.OK, Reason.BASE_FAILED), (Status.OK, Status.CRASHED, None)],
)
def test_a_failure_of_the_base_is_not_one_of_the_head(base: Status, head: Status, reason: Reason | None) -> None:
    rounds = _Rounds(REQUEST, side("base", base), side("head", head), BoundedReporter(Diary()))
    comparison = rounds._round(Comparison(*PAIR, "hot", "1", Status.OK), 0)
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
    taken = _Rounds(request, side("base", Status.OK, kind), side("head", Status.OK, kind), BoundedReporter(Diary()))
    index, certain = 0, []
    while index < 12:
        certain.append(taken._certain_rounds(index))
        index += certain[-1]
    assert certain == rounds


def test_different_interpreters_are_not_compared(tmp_path: Path) -> None:
    keys = iter(("one interpreter", "another interpreter"))
    checkouts = [
        SimpleNamespace(environment=lambda reporter, key=key: SimpleNamespace(key=key), running=True) for key in keys
    ]
    base, head = cast("list[Checkout]", checkouts)
    tools: Any = SimpleNamespace()
    with pytest.raises(CannotRunError) as caught:
        compare(REQUEST, base, head, tools, BoundedReporter(Diary()), tmp_path)
    assert (caught.value.reason, caught.value.retry) == (Reason.INTERPRETER_MISMATCH, False)


def test_a_comparison_without_pairs_takes_all_that_the_head_has() -> None:
    variants = [VariantEntry(name, "", "", [kind], native=False) for name, kind in (("v1", "cpu"), ("v2", "cuda"))]
    cases = [
        CaseEntry(f"n={n}", {}, "f32", "fwd", "contiguous", [suite], 1, 1) for n, suite in ((1, "quick"), (2, "full"))
    ]
    entry = OperatorEntry("square", "", variants, cases)
    head: Any = SimpleNamespace(catalogue=lambda *_: (None, entry), host=SimpleNamespace(kind="cpu"))

    def pairs(**spec: Any) -> list[tuple[str, str]]:
        return _list_pairs(replace(REQUEST, spec=JobSpec(**spec)), head, Diary())

    assert pairs() == [("v1", "n=1")]
    assert pairs(cases=["n=2"]) == [("v1", "n=2")]
    with pytest.raises(CannotRunError):
        pairs(variants=["v2"])
