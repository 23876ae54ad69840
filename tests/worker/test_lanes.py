"""Several lanes measure the cells of one job, whatever each of them finds."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace

import pytest

from tests.worker.conftest import Diary, Repository
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Fault, Status
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.lanes import Cell, Measure, lanes_of, measure_in_lanes
from warpwatch.worker.reporter import CannotRunError, Reporter, Stopped
from warpwatch.worker.tools import Tools

CASES = ["n=100,f32,fwd", "n=101,f32,fwd", "n=102,f32,fwd"]


def test_a_worker_bound_to_some_cores_starts_children_for_these_alone(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = replace(tools.host, device="cuda:0")
    for cores, lanes in ((1, 1), (6, 3), (64, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _process, cores=cores: set(range(cores)), raising=False)
        assert lanes_of(gpu, "check", 100) == lanes


def test_a_job_that_times_a_few_calls_on_a_gpu_starts_few_children(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(16)), raising=False)
    gpu = replace(tools.host, device="cuda:0")
    assert [lanes_of(gpu, "bench", cells) for cells in (1, 7, 8, 12, 100)] == [1, 1, 2, 3, 3]
    assert lanes_of(tools.host, "bench", 100) == 1


def test_what_lacks_memory_beside_others_is_checked_again_alone(
    repository: Repository, good: str, tools: Tools
) -> None:
    (checkout,) = tools.checkouts(repository.url, [good], Diary())
    asked: list[tuple[str, bool]] = []

    def open_lane(lane: Checkout, reporter: Reporter) -> Measure:
        def check(cell: Cell) -> Finding:
            alone = lane is checkout
            asked.append((cell[0], alone))
            return Finding(*cell, Status.OK if alone or cell[0] == "small" else Status.OUT_OF_MEMORY)

        return check

    cells = [("small", CASES[0]), ("large", CASES[0])]
    findings = measure_in_lanes(checkout, "check", cells, open_lane, Diary(), lanes=2)
    assert [(found.variant, found.status) for found in findings] == [("small", Status.OK), ("large", Status.OK)]
    assert sorted(asked) == [("large", False), ("large", True), ("small", False)]


@pytest.mark.parametrize(("kind", "again"), [("bench", True), ("check", False)])
def test_what_was_timed_beside_a_child_that_burns_the_device_does_not_count(
    repository: Repository, good: str, tools: Tools, kind: str, again: bool
) -> None:
    (checkout,) = tools.checkouts(repository.url, [good], Diary())

    def open_lane(lane: Checkout, reporter: Reporter) -> Measure:
        def bench(cell: Cell) -> Finding:
            if cell[0] == "burns":
                return Finding(*cell, Status.WRONG, fault=Fault.IDLE_WORK)
            return Finding(*cell, Status.OK, "alone" if lane is checkout else "beside others")

        return bench

    diary = Diary()
    cells = [("honest", CASES[0]), ("burns", CASES[0])]
    honest, burns = measure_in_lanes(checkout, kind, cells, open_lane, diary, lanes=2)
    assert (honest.message, burns.fault) == ("alone" if again else "beside others", Fault.IDLE_WORK)
    assert len(diary.lines) == again


def test_an_error_in_one_lane_ends_the_others(repository: Repository, good: str, tools: Tools) -> None:
    (checkout,) = tools.checkouts(repository.url, [good], Diary())

    def open_lane(lane: Checkout, reporter: Reporter) -> Measure:
        def check(cell: Cell) -> Finding:
            if cell[0] == "bad":
                raise CannotRunError("the child does not start")
            while (reason := reporter.should_stop()) is None:
                time.sleep(0.01)
            raise Stopped(reason)

        return check

    # The third lane waits for what the first one finds out.
    cells = [("waits", CASES[0]), ("bad", CASES[0]), ("waits", CASES[1])]
    with pytest.raises(CannotRunError, match="does not start"):
        measure_in_lanes(checkout, "check", cells, open_lane, Diary(), lanes=3)


def test_lanes_help_with_the_cases_of_a_harmless_variant_alone(repository: Repository, good: str, tools: Tools) -> None:
    (checkout,) = tools.checkouts(repository.url, [good], Diary())
    lanes: dict[str, set[int]] = {"slow": set(), "wrong": set()}
    # Each case of `slow` but the first waits until another lane checks one as well.
    together = threading.Barrier(2, timeout=60)

    def open_lane(lane: Checkout, reporter: Reporter) -> Measure:
        def check(cell: Cell) -> Finding:
            variant, case = cell
            lanes[variant].add(threading.get_ident())
            if variant == "slow" and case != CASES[0]:
                together.wait()
            return Finding(*cell, Status.OK if variant == "slow" else Status.WRONG)

        return check

    cells = [(variant, case) for case in CASES[:3] for variant in lanes]
    findings = measure_in_lanes(checkout, "check", cells, open_lane, Diary(), lanes=3)
    assert [(found.variant, found.case) for found in findings] == cells
    assert len(lanes["slow"]) > 1
    assert len(lanes["wrong"]) == 1
