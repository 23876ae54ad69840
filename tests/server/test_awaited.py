"""Ranges are measured newest first and by halves: no change is suspected across commits that wait for their turn, and
nothing is lost when one of them fails."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab
from warpwatch import git
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import JobState, Status
from warpwatch.db import runs
from warpwatch.db.database import Database
from warpwatch.server.judge import Judge
from warpwatch.server.verdicts import suspicion
from warpwatch.settings import Settings

V1 = ("v1", CASES[0])
FAILS = "no compiler"


@pytest.fixture
def judge(settings: Settings, database: Database, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """A judge that suspects by times alone."""
    monkeypatch.setattr(suspicion, "_unseen", lambda window: [])
    git.update_mirror(str(lab.source), settings.home)
    return Judge(settings, database)


def measure(client: TestClient, lab: Lab, judge: Judge, kind: str, values: list[Any]) -> list[set[tuple[int, int]]]:
    """Has the whole history measured, which reads `values` from the oldest commit on; after each job, the ranges of
    commits that are suspected."""
    request = {"repository": "kernels", "commits": f"{lab.shas[0]}^..main", "kinds": [kind], "operators": ["square"]}
    made = client.post("/api/v1/submissions", json=request).json()["id"]
    suspected: list[set[tuple[int, int]]] = []
    while True:
        rows = client.get("/api/v1/jobs", params={"submission": made, "state": "queued"}).json()["items"]
        if not rows:
            return suspected
        job = min(rows, key=lambda row: int(row["id"]))
        value = values[lab.shas.index(job["commit_sha"])]
        run = lab.begin(job["id"])
        with lab.database.session() as session:
            if value == FAILS:
                runs.fail_run(session, run, FAILS, retry=False)
            elif kind == "bench":
                runs.finish_run(session, run, lab.outcome([lab._timed(*V1, value, 0.002)]))
            else:
                runs.finish_run(session, run, lab.outcome([Finding(*V1, value, "")]))
        judge.sweep()
        suspected.append(ranges(client, lab))


def ranges(client: TestClient, lab: Lab) -> set[tuple[int, int]]:
    answer = client.get("/api/v1/regressions", params={"repository": "kernels", "verdict": "suspected", "limit": 200})
    place = lab.shas.index
    return {(place(row["base_sha"]), place(row["head_sha"])) for row in answer.json()["items"]}


@pytest.mark.parametrize(
    ("slower", "expected"), [({1}, {(0, 1), (1, 2)}), ({3, 4}, {(2, 3)}), ({2, 3, 4, 5}, {(1, 2)})]
)
def test_a_change_is_suspected_at_its_commit_alone(
    client: TestClient, lab: Lab, judge: Judge, slower: set[int], expected: set[tuple[int, int]]
) -> None:
    suspected = measure(client, lab, judge, "bench", [13_000.0 if place in slower else 10_000.0 for place in range(6)])
    assert suspected[-1] == expected
    assert set().union(*suspected) == expected


def test_a_commit_that_cannot_be_measured_hides_no_change(client: TestClient, lab: Lab, judge: Judge) -> None:
    assert measure(client, lab, judge, "bench", [10_000.0, FAILS, 13_000.0, 13_000.0, FAILS, 13_000.0])[-1] == {(0, 2)}


def test_what_broke_is_found_at_its_commit(client: TestClient, lab: Lab, judge: Judge) -> None:
    ok, wrong = Status.OK, Status.WRONG
    suspected = measure(client, lab, judge, "check", [ok, ok, wrong, ok, wrong, wrong])
    assert suspected[-1] == {(1, 2), (3, 4)}
    assert set().union(*suspected) == {(1, 2), (3, 4)}


def test_every_job_of_a_range_is_judged_with_all_readings(client: TestClient, lab: Lab, judge: Judge) -> None:
    measure(client, lab, judge, "bench", [10_000.0] * 6)
    with lab.database.session() as session:
        late = "SELECT count(*) FROM jobs WHERE judged_at >= (SELECT max(finished_at) FROM jobs)"
        assert session.scalar(text(late)) == len(lab.shas)
        assert set(session.scalars(text("SELECT state FROM jobs"))) == {JobState.DONE}
