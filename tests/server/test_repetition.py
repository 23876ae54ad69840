"""What a comparison that somebody asked for leaves open is taken again, once and for longer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from tests.server.test_held import V1, V2, V3, branched, held, jobs, report, times
from warpwatch import git
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.server.judge import Judge
from warpwatch.server.verdicts.thresholds import THRESHOLDS
from warpwatch.settings import Settings

NOISE = [10_000.0] * 12, [8_000.0, 14_000.0] * 6


@pytest.fixture
def lab(database: Database, tmp_path: Path) -> Lab:
    return branched(database, tmp_path)


@pytest.fixture
def judge(settings: Settings, database: Database, lab: Lab) -> Judge:
    git.update_mirror(str(lab.source), settings.home)
    return Judge(settings, database)


def end(client: TestClient, lab: Lab, judge: Judge, submission: int, rounds: dict[Any, Any]) -> None:
    """End every job that waits, comparisons with these rounds."""
    for job in jobs(client, submission):
        if job["state"] == "queued":
            if job["kind"] == "compare":
                lab.compare(job["id"], rounds)
            else:
                lab.finish(job["id"], lab.outcome([Finding(*cell, Status.OK) for cell in (V1, V2, V3)]))
    judge.sweep()


def test_what_is_unsure_is_taken_again_for_longer(client: TestClient, lab: Lab, judge: Judge) -> None:
    submission = held(client)
    end(client, lab, judge, submission, {V1: NOISE, V2: times(1.0), V3: times(1.3)})
    (again,) = [job for job in jobs(client, submission) if job["state"] == "queued"]
    spec = client.get(f"/api/v1/jobs/{again['id']}").json()["spec"]
    assert (spec["pairs"], spec["rounds"]) == ([["v1", CASES[0]]], THRESHOLDS["cpu"].more_rounds)
    assert (report(client, submission)["conclusion"], report(client, submission)["pending"]) == ("pending", 1)

    base, head = times(1.2)
    end(client, lab, judge, submission, {V1: (base * 3, head * 3)})
    found = report(client, submission)
    assert found["counts"] == {"slower": 2}
    assert {row["variant"]: row["rounds"] for row in found["rows"]} == {"v1": THRESHOLDS["cpu"].more_rounds, "v3": 12}
    assert (found["conclusion"], found["compared"], found["same"]) == ("failure", 3, 1)


def test_what_stays_unsure_is_left_at_that(client: TestClient, lab: Lab, judge: Judge) -> None:
    submission = held(client)
    for _ in range(2):
        end(client, lab, judge, submission, {V1: NOISE})
    assert report(client, submission)["counts"] == {"unsure": 1}
    assert report(client, submission)["pending"] == 0


@pytest.mark.parametrize(("ratio", "repeated"), [(1.1, 0), (1.6, 1)])
def test_an_unsure_launch_is_taken_again_only_where_it_seems_to_have_changed(
    client: TestClient, lab: Lab, judge: Judge, ratio: float, repeated: int
) -> None:
    submission = held(client)
    launches = [9_000.0] * 12, [9_000.0 * ratio * noise for noise in (0.7, 1.3)] * 6
    end(client, lab, judge, submission, {V1: {"hot": times(1.0), "launch": launches}})
    assert report(client, submission)["counts"] == {"unsure": 1}
    assert len([job for job in jobs(client, submission) if job["state"] == "queued"]) == repeated


def test_what_was_cancelled_is_not_taken_again(client: TestClient, lab: Lab, judge: Judge) -> None:
    submission = held(client, kinds=["compare"])
    measured, cancelled = jobs(client, submission)
    client.post(f"/api/v1/jobs/{cancelled['id']}/cancel")
    lab.compare(measured["id"], {V1: NOISE})
    judge.sweep()
    assert report(client, submission)["counts"]["unsure"] == 1
    assert [job for job in jobs(client, submission) if job["state"] == "queued"] == []
