"""Changed code is compared where times would not tell; the same code is not, whatever the times say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CPU, Lab, catalogue, commit
from tests.server.simulated import V1, V2, V3, Machine, Truth, write_history
from warpwatch import git
from warpwatch.contract.catalogue import Catalogue
from warpwatch.contract.messages import BuildReply
from warpwatch.contract.priorities import CONFIRM, CONFIRM_CODE
from warpwatch.contract.words import Status
from warpwatch.contract.written_numbers import change
from warpwatch.db.database import Database
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings

PYTHON, NATIVE, MANUAL = "kernels/square.py", "csrc/square/square.cpp", "README.md"


@pytest.fixture
def worker(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> Machine:
    """Commits 1 and 2 touch native code, 3 the manual and 4 the operator's file; v3 is native."""
    source = tmp_path / "history" / "kernels"
    shas = write_history(source, {0: PYTHON, 1: NATIVE, 2: NATIVE, 3: MANUAL, 4: PYTHON}, 5)
    git.update_mirror(str(source), settings.home)
    return Machine(client, Lab(database, source, shas, tmp_path), Judge(settings, database), Truth())


def bench(worker: Machine, number: int, code_hash: str, times: dict[Any, float] | None = None) -> list[list[str]]:
    """A bench at a commit with this machine code; the pairs that are to be compared after it."""
    lab = worker.lab
    (entry,) = catalogue().operators
    variants = [replace(variant, native=variant.name == "v3") for variant in entry.variants]
    names = Catalogue(1, [replace(entry, variants=variants)])
    job = lab.submit("bench", number)
    rows = [lab._timed(*cell, (times or {}).get(cell, 100_000.0), 0.002) for cell in (V1, V2, V3)]
    build = BuildReply(Status.OK, "", "key", False, 1.0, "", [], 0.0, code_hash)
    lab.finish(job, replace(lab.outcome(rows), catalogue=names, build=build))
    worker.judge.sweep()
    return [
        sorted(variant for variant, _ in worker.client.get(f"/api/v1/jobs/{job['id']}").json()["spec"]["pairs"])
        for job in worker.waiting()
        # A new environment has the newest commit of the old one measured again.
        if job["kind"] == "compare"
    ]


def test_only_what_the_changed_code_can_reach_is_compared(worker: Machine) -> None:
    assert bench(worker, 0, "a") == []
    assert bench(worker, 1, "b") == [["v3"]]
    (job,) = worker.waiting()
    assert job["priority"] == CONFIRM_CODE
    (row,) = worker.rows("suspected")
    assert row["cause"] == "code"
    worker.answer(job)
    worker.judge.sweep()
    assert worker.rows("dismissed")[0]["settled_at"]
    assert bench(worker, 2, "b") == [], "other sources, the same machine code"
    assert bench(worker, 3, "") == [], "the same sources"
    assert bench(worker, 4, "b") == [["v1", "v2", "v3"]]


def test_the_same_code_is_evidence_of_noise(worker: Machine) -> None:
    bench(worker, 1, "b")
    assert bench(worker, 2, "b", {V1: 150_000.0, V3: 150_000.0}) == []
    assert bench(worker, 3, "c", {V1: 300_000.0, V3: 300_000.0}) == [], (
        "where the sources are the same the build must be"
    )
    assert worker.rows("suspected") == []


def test_what_the_code_changed_is_found_whichever_way_it_went(worker: Machine) -> None:
    """3 % is nothing that a noisy history shows, nor the direction."""
    worker.truth = Truth(times={V3: {1: 0.96}})
    bench(worker, 0, "a")
    bench(worker, 1, "b", {V3: 101_000.0})
    assert worker.rows("suspected")[0]["direction"] == "slower"
    worker.work()
    assert worker.found() == {("faster", 0, 1)}
    assert worker.done == {"compare": 1}
    number = worker.rows()[0]["id"]
    assert worker.notes(number)[0] == "slower was expected, and the opposite was measured"
    (trial,) = worker.client.get(f"/api/v1/regressions/{number}").json()["trials"]
    assert trial["message"].startswith(f"{change(trial['ratio'])}, "), "a change is written as on pages"


def test_one_range_is_compared_for_its_code_once(worker: Machine) -> None:
    bench(worker, 0, "a")
    bench(worker, 2, "c")
    worker.work()
    assert worker.done == {"compare": 1}
    assert bench(worker, 1, "b") == [], "nothing differed between 0 and 2"


def test_a_change_where_the_environment_changed_is_found(worker: Machine) -> None:
    """Times of two environments say nothing of each other; measured in one, the commits do."""
    worker.truth = Truth(times={V3: {2: 1.2}})
    bench(worker, 0, "a")
    bench(worker, 1, "a")
    worker.lab.environment = replace(CPU, key="e" * 64, facts={"torch": "2.14.0"})
    assert bench(worker, 2, "c", {V1: 60_000.0, V2: 60_000.0, V3: 70_000.0}) == [["v3"]]
    worker.work()
    assert worker.found() == {("slower", 1, 2)}
    assert bench(worker, 3, "", {V3: 70_000.0}) == [], "the same sources, and not the first in its environment"


def test_commits_that_ask_for_different_interpreters_are_not_compared(
    worker: Machine, settings: Settings, tmp_path: Path
) -> None:
    lab = worker.lab
    (lab.source / "warpwatch.toml").write_text('interpreter = "/opt/python/bin/python"\n')
    shas = [*lab.shas, commit(lab.source, "Ask for another Python")]
    git.update_mirror(str(lab.source), settings.home)
    worker.lab = Lab(lab.database, lab.source, shas, tmp_path)
    bench(worker, 4, "a")
    worker.lab.environment = replace(CPU, key="e" * 64, facts={"python": "3.14.0"})
    assert bench(worker, 5, "a") == []


def test_trials_get_their_share_of_a_busy_device(worker: Machine) -> None:
    """Ordinary work goes first, but not for ever: a trial in every few jobs is put in front of it."""
    worker.truth = Truth(times={V1: {4: 1.5}})
    worker.bench(0)
    worker.bench(4)
    ordinary = [worker.lab.submit("check", 0) for _ in range(12)]
    (trial,) = [job for job in worker.waiting() if job["kind"] == "compare"]
    assert trial["priority"] == CONFIRM
    assert worker.waiting()[-1] == trial, "it is behind all that people asked for"
    order = []
    while waiting := worker.waiting():
        order.append(waiting[0]["kind"])
        if waiting[0]["kind"] == "check":
            worker.lab.finish(waiting[0]["id"], worker.lab.outcome([]))
        else:
            worker.answer(waiting[0])
        worker.judge.sweep()
    assert order.index("compare") == 1, "trials had nothing of the device so far"
    assert order.count("check") == len(ordinary)
