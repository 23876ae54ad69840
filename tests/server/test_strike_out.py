"""Results that a person struck out stay at their job and count nowhere else, until that is undone."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from tests.server.test_code import problem
from tests.server.test_judge import compare_jobs, judge, listed, rounds
from warpwatch.contract.words import Status
from warpwatch.server.judge import Judge

API = "/api/v1"
V1, V2 = ("v1", CASES[0]), ("v2", CASES[0])
AT = {"repository": "kernels", "device": "test-cpu"}
__all__ = ["judge"]


def strike(client: TestClient, job: int, reason: str = "another program used the device") -> dict[str, Any]:
    answer = client.post(f"{API}/jobs/{job}/strike-out", json={"reason": reason})
    assert answer.status_code == 200, answer.text
    detail: dict[str, Any] = answer.json()
    return detail


def undo(client: TestClient, job: int) -> dict[str, Any]:
    answer = client.delete(f"{API}/jobs/{job}/strike-out")
    assert answer.status_code == 200, answer.text
    detail: dict[str, Any] = answer.json()
    return detail


def seen(client: TestClient, lab: Lab) -> dict[str, Any]:
    """What the pages and endpoints say of the repository."""
    overview = client.get(f"{API}/overview", params=AT).json()["items"]
    histories = [
        client.get(f"{API}/history/{row['id']}").json()
        for row in client.get(f"{API}/series", params=AT).json()["items"]
    ]
    commits = client.get(f"{API}/commits", params={"repository": "kernels"}).json()["items"]
    cells = client.get(f"{API}/commits/{lab.shas[1]}/cells", params={"repository": "kernels"}).json()["items"]
    badge = client.get(f"{API}/badges/kernels.svg")
    sides = {"left": lab.shas[0], "right": lab.shas[1]}
    compared = client.get(f"{API}/compare", params=AT | sides).json()["items"]
    return {
        "overview": [(row["variant"], row["median_ns"], row["check_status"]) for row in overview],
        "points": [[point["commit_sha"] for point in history["points"]] for history in histories],
        "marks": [mark["status"] for history in histories for mark in history["marks"]],
        "commits": [(row["sha"], row["points"], row["wrong"]) for row in commits],
        "cells": cells,
        "badge": badge.text,
        "compared": [(row["left_ns"], row["right_ns"]) for row in compared],
        "submissions": [row["results"] for row in client.get(f"{API}/submissions").json()["items"]],
    }


def test_struck_out_times_count_nowhere_and_come_back(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {V1: 10_000.0})
    before = seen(client, lab)
    job = lab.bench(1, {V1: 13_000.0})
    counted = seen(client, lab)
    detail = strike(client, job)
    assert detail["struck_out_reason"] == "another program used the device"
    (result,) = detail["results"]
    assert result["median_ns"] == 13_000.0
    assert len(result["measured"]) == 2
    struck = seen(client, lab)
    for name in ("overview", "points", "marks", "commits", "cells", "badge"):
        assert struck[name] == before[name], name
    assert struck["compared"] == [(10_000.0, None)]
    assert struck["submissions"] == [{}, {"ok": 1}]
    assert undo(client, job)["struck_out_reason"] is None
    assert seen(client, lab) == counted


def test_a_struck_out_check_is_no_wrong_result(client: TestClient, lab: Lab) -> None:
    lab.check(0, {V1: Status.OK})
    before = seen(client, lab)
    job = lab.check(1, {V1: Status.WRONG})
    assert seen(client, lab)["overview"] != before["overview"]
    strike(client, job)
    struck = seen(client, lab)
    assert {name: struck[name] for name in ("overview", "marks", "commits", "badge", "cells")} == {
        name: before[name] for name in ("overview", "marks", "commits", "badge", "cells")
    }


def test_a_suspicion_goes_with_the_times_that_gave_rise_to_it(client: TestClient, lab: Lab, judge: Judge) -> None:
    lab.bench(0, {V1: 10_000.0})
    job = lab.bench(1, {V1: 13_000.0})
    judge.sweep()
    assert len(listed(client, "suspected")) == 1
    strike(client, job)
    judge.sweep()
    assert listed(client, "suspected") == []
    assert listed(client) == []
    lab.bench(2, {V1: 10_010.0})
    judge.sweep()
    assert listed(client, "suspected") == [], "the next commit is compared with what counts"


def test_a_verdict_of_a_struck_out_comparison_is_open_again(client: TestClient, lab: Lab, judge: Judge) -> None:
    lab.bench(0, {V1: 10_000.0})
    lab.bench(1, {V1: 13_000.0})
    judge.sweep()
    (job,) = compare_jobs(client)
    lab.compare(job["id"], {V1: rounds(1.3)})
    judge.sweep()
    (regression,) = listed(client)
    strike(client, job["id"])
    assert listed(client) == []
    judge.sweep()
    (again,) = compare_jobs(client)
    assert again["id"] == job["id"], "the comparison is measured again"
    lab.compare(again["id"], {V1: rounds(1.0)})
    judge.sweep()
    assert [row["id"] for row in listed(client, "dismissed")] == [regression["id"]]


def test_what_cannot_be_struck_out(client: TestClient, lab: Lab) -> None:
    problem(client.post(f"{API}/jobs/99/strike-out", json={"reason": "x"}), 404)
    queued = lab.submit("bench", 0)
    problem(client.post(f"{API}/jobs/{queued}/strike-out", json={"reason": "x"}), 409)
    job = lab.bench(0, {V1: 10_000.0})
    problem(client.delete(f"{API}/jobs/{job}/strike-out"), 409)
    for body in ({}, {"reason": ""}, {"reason": "   "}, {"reason": "x" * 501}, {"reason": "x", "more": 1}):
        problem(client.post(f"{API}/jobs/{job}/strike-out", json=body), 422)
    strike(client, job)
    problem(client.post(f"{API}/jobs/{job}/strike-out", json={"reason": "x"}), 409)


def test_running_it_again_counts(client: TestClient, lab: Lab) -> None:
    job = lab.bench(0, {V1: 10_000.0})
    strike(client, job)
    client.post(f"{API}/jobs/{job}/retry")
    lab.finish(job, lab.outcome([lab._timed(*V1, 11_000.0, 0.002)]))
    detail = client.get(f"{API}/jobs/{job}").json()
    assert detail["struck_out_reason"] is None
    assert [run["struck_out_reason"] is None for run in detail["runs"]] == [False, True]
    assert seen(client, lab)["overview"] == [("v1", 11_000.0, None)]


@pytest.mark.parametrize("reason", ["<b>it was hot</b>"])
def test_the_page_of_the_job_does_it(client: TestClient, lab: Lab, reason: str) -> None:
    job = lab.bench(0, {V1: 10_000.0})
    assert 'id="strike-out"' in client.get(f"/jobs/{job}").text
    answer = client.post(f"/jobs/{job}/strike-out", data={"reason": reason}, follow_redirects=True)
    assert answer.status_code == 200
    assert "&lt;b&gt;it was hot&lt;/b&gt;" in answer.text
    assert 'id="strike-out"' not in answer.text
    answer = client.post(f"/jobs/{job}/strike-out/undo", follow_redirects=True)
    assert 'id="strike-out"' in answer.text
