"""What was right and is broken now: suspected from checks, confirmed and bisected by checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CPU, Lab
from tests.planted import plant
from tests.server.simulated import V1, V2, V3, Machine, Truth, write_history
from warpwatch import git
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings

Build = Callable[[Truth], Machine]
FORMS = ("md", "junit.xml", "sarif", "github.json")


@pytest.fixture
def build(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> Build:
    def make(truth: Truth) -> Machine:
        source = tmp_path / "history" / "kernels"
        shas = write_history(source, dict.fromkeys(range(8), "kernels/square.py"), 8)
        git.update_mirror(str(source), settings.home)
        return Machine(client, Lab(database, source, shas, tmp_path), Judge(settings, database), truth)

    return make


def test_all_that_broke_at_once_is_one_regression(build: Build) -> None:
    worker = build(Truth(broken={V1: (3, Status.WRONG), V2: (3, Status.CRASHED)}, unbuildable=frozenset({2, 4})))
    for number in (0, 7):
        worker.check(number)
        worker.work()
    # Commit 2 does not build, so nobody can tell whether it broke there or in commit 3.
    assert worker.found() == {("broken", 1, 3)}
    (row,) = worker.rows()
    assert (row["ratio"], row["series"], row["cause"]) == (None, 2, "status")
    detail = worker.client.get(f"/api/v1/regressions/{row['id']}").json()
    statuses = {(one["variant"], one["base_status"], one["head_status"]) for one in detail["series"]}
    assert statuses == {("v1", "ok", "wrong"), ("v2", "ok", "crashed")}
    assert f"Not measurable: {worker.lab.shas[2][:8]}" in worker.notes(row["id"])[-1]


def test_what_broke_later_is_found_too(build: Build) -> None:
    worker = build(Truth(broken={V1: (2, Status.WRONG), V2: (5, Status.TIMED_OUT)}))
    for number in (0, 7):
        worker.check(number)
        worker.work()
    assert worker.found() == {("broken", 1, 2), ("broken", 4, 5)}


def test_a_build_that_fails_from_a_commit_on_is_the_thing_itself(build: Build) -> None:
    worker = build(Truth(broken=dict.fromkeys((V1, V2, V3), (4, Status.BUILD_FAILED))))
    for number in (7, 0):
        worker.check(number)
        worker.work()
    assert worker.found() == {("broken", 3, 4)}


def test_what_fails_once_is_flaky(build: Build) -> None:
    worker = build(Truth())
    worker.check(0)
    worker.lab.check(7, {V1: Status.WRONG, V2: Status.OK})
    worker.work()
    assert worker.found() == set()
    (row,) = worker.rows("dismissed")
    assert len(worker.notes(row["id"])) == 1
    worker.check(6)
    assert worker.waiting() == []


def test_a_new_environment_breaks_nothing(build: Build) -> None:
    """From a new driver on commit 7 is wrong, and so would be every commit before it."""
    worker = build(Truth())
    worker.check(0)
    worker.lab.environment = replace(CPU, key="e" * 64, facts={"torch": "2.14.0"})
    worker.truth = Truth(broken={V1: (0, Status.WRONG)})
    worker.check(7)
    worker.work()
    assert worker.found() == set()
    (row,) = worker.rows("dismissed")
    assert "the environment changed, not the code" in " ".join(worker.notes(row["id"]))


def test_what_breaks_in_a_new_environment_by_a_commit_is_found(build: Build) -> None:
    worker = build(Truth(broken={V1: (5, Status.WRONG)}))
    worker.check(0)
    worker.lab.environment = replace(CPU, key="e" * 64, facts={"torch": "2.14.0"})
    worker.check(7)
    worker.work()
    assert worker.found() == {("broken", 4, 5)}


def test_what_says_nothing_alarms_nobody(build: Build) -> None:
    worker = build(Truth())
    for number, status in enumerate((Status.OK, Status.UNSUPPORTED, Status.SKIPPED, Status.OK)):
        worker.lab.check(number, {V1: status})
    worker.lab.check(5, {V2: Status.WRONG})
    worker.judge.sweep()
    assert worker.waiting() == []


def test_a_report_over_several_commits_says_where_what_failed_is_right_again(client: TestClient, lab: Lab) -> None:
    """The page of the repository says that all checks pass, which a report of its newest commit must not hide."""
    jobs = [lab.check(index, {V1: status}) for index, status in ((1, Status.WRONG), (2, Status.WRONG), (3, Status.OK))]
    run = {"jobs": jobs, "run": jobs[0]}
    sql = "UPDATE jobs SET submission_id = (SELECT submission_id FROM jobs WHERE id = :run) WHERE id = ANY(:jobs)"
    with lab.database.session() as s:
        s.execute(text(sql), run)
        number = s.scalar(text("SELECT submission_id FROM jobs WHERE id = :run"), run)
    right = lab.shas[3]
    rows = client.get(f"/api/v1/submissions/{number}/report").json()["rows"]
    assert [(row["head_sha"], row["right_at"]) for row in rows] == [(lab.shas[1], right), (lab.shas[2], right)]
    for path in (f"/runs/{number}", *(f"/api/v1/submissions/{number}/report.{form}" for form in FORMS)):
        assert re.sub(r"<[^>]+>", "", client.get(path).text).count(f"right again at {right[:8]}") >= 2, path
    with lab.database.session() as s:
        s.execute(text("DELETE FROM jobs WHERE id = :id"), {"id": jobs[2]})
    rows = client.get(f"/api/v1/submissions/{number}/report").json()["rows"]
    assert {row["right_at"] for row in rows} == {None}, "wrong at the newest commit"


def test_pages_and_reports_name_the_same_cause_of_a_suspicion(client: TestClient, lab: Lab) -> None:
    for index in (0, 1):
        job = lab.bench(index, {V1: 1000.0})
    number = plant(lab, 0, 1, 1.3, [V1], cause="code")
    with lab.database.session() as s:
        submission = s.scalar(text("SELECT submission_id FROM jobs WHERE id = :id"), {"id": job})
    (row,) = client.get(f"/api/v1/submissions/{submission}/report").json()["rows"]
    assert row["decided_by"].startswith("suspected from a change of code, then ")
    assert "from a change of code" in client.get(f"/regressions/{number}").text
