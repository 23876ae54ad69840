"""What a submission would create is counted before it is sent, and commits can be picked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab, catalogue, commit, make_repository, run_git
from tests.server.test_code import problem
from warpwatch.contract.words import Status
from warpwatch.db import registry


def preview(client: TestClient, **fields: Any) -> dict[str, Any]:
    answer = client.post("/api/v1/submissions/preview", json={"repository": "kernels", "commits": "main"} | fields)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kinds": ["check"], "operators": ["cube"]},
        {"commits": "main~3..main"},
        {"base": "parent"},
        {"kinds": ["bench"], "base": "main~2", "operators": ["square"]},
    ],
)
def test_a_preview_counts_what_a_submission_creates(client: TestClient, lab: Lab, fields: dict[str, Any]) -> None:
    lab.operators = ("square", "cube")
    for operator in lab.operators:
        lab.check(0, {("v1", CASES[0]): Status.OK}, operator=operator)
    expected = preview(client, **fields)
    before = client.get("/api/v1/jobs").json()["items"][0]["id"]
    answer = client.post("/api/v1/submissions", json={"repository": "kernels", "commits": "main"} | fields)
    assert answer.status_code == 201, answer.text
    jobs = [job for job in client.get("/api/v1/jobs?limit=200").json()["items"] if job["id"] > before]
    assert expected["jobs"] == len(jobs)
    assert expected["kinds"] == {
        kind: sum(job["kind"] == kind for job in jobs) for kind in {job["kind"] for job in jobs}
    }
    assert set(expected["operators"]) == {job["operator"] for job in jobs}


def test_minutes_come_from_earlier_jobs(client: TestClient, lab: Lab) -> None:
    job = lab.check(0, {("v1", CASES[0]): Status.OK})
    with lab.database.session() as session:
        session.execute(text("UPDATE jobs SET started_at = finished_at - interval '90 s' WHERE id = :id"), {"id": job})
    assert preview(client, kinds=["check"], operators=["square"])["minutes"] == 1.5
    assert preview(client, kinds=["check"], operators=["square"], commits="main~2..main")["minutes"] == 3.0


def test_a_preview_creates_nothing_and_names_fields(client: TestClient, lab: Lab) -> None:
    preview(client)
    assert client.get("/api/v1/jobs").json()["items"] == []
    body = {"repository": "kernels", "commits": "nowhere", "operators": ["cubes"], "priority": 0}
    assert [
        error["field"] for error in problem(client.post("/api/v1/submissions/preview", json=body), 422)["errors"]
    ] == ["commits"]
    shown = client.post(
        "/runs/preview",
        data={"repository": "kernels", "commits": "main", "kinds": "check", "operators": "cubes"},
    )
    assert shown.status_code == 200
    assert "cubes" in shown.text


def test_a_preview_sees_what_was_just_pushed(client: TestClient, lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "pushed"
    make_repository(path, commits=2)
    client.post("/api/v1/repositories", json={"name": "pushed", "url": str(path)})
    run_git(path, "checkout", "--quiet", "-b", "late")
    sha = commit(path, "Late")
    assert preview(client, repository="pushed", commits="late")["commits"] == [sha]


def test_branches_and_commits_to_pick(client: TestClient, lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "picked"
    shas = make_repository(path, commits=3)
    run_git(path, "checkout", "--quiet", "-b", "side")
    side = commit(path, "On the\u2028side | <b>")
    run_git(path, "checkout", "--quiet", "main")
    client.post("/api/v1/repositories", json={"name": "picked", "url": str(path)})
    options = client.get("/api/v1/repositories/picked/commits").json()
    assert {branch["name"]: branch["newest"]["sha"] for branch in options["branches"]} == {
        "main": shas[-1],
        "side": side,
    }
    assert [row["sha"] for row in options["commits"]] == shas[::-1]
    on_side = client.get("/api/v1/repositories/picked/commits", params={"branch": "side"}).json()
    assert on_side["commits"][0]["subject"] == "On the\u2028side | <b>"
    problem(client.get("/api/v1/repositories/picked/commits", params={"branch": "--all"}), 404)
    fragment = client.get("/runs/picker", params={"repository": "picked", "branch": "side"}).text
    assert "&lt;b&gt;" in fragment
    assert "<b>" not in fragment


def test_example_data_is_not_measured_here(client: TestClient, lab: Lab) -> None:
    job = lab.check(0, {("v1", CASES[0]): Status.WRONG})
    with lab.database.session() as session:
        session.execute(text("UPDATE repositories SET is_example = true"))
    body = {"repository": "kernels", "commits": "main"}
    for path in ("/api/v1/submissions", "/api/v1/submissions/preview"):
        assert [error["field"] for error in problem(client.post(path, json=body), 422)["errors"]] == ["repository"]
    problem(client.post(f"/api/v1/jobs/{job}/retry"), 409)
    problem(client.post("/api/v1/submissions/1/retry"), 409)
    assert client.post(f"/jobs/{job}/retry").status_code == 409
    assert f"/jobs/{job}/retry" not in client.get(f"/jobs/{job}").text
    page = client.get("/runs/new").text
    assert "Register a repository" in page
    with lab.database.session() as session:
        registry.ensure_repository(session, "mine", str(lab.source))
    page = client.get("/runs/new").text
    assert "kernels cannot be measured here" in page
    assert 'href="/runs/new?repository=mine"' in page
    assert ">Submit<" not in page
    assert ">Submit<" in client.get("/runs/new?repository=mine").text
    sent = client.post("/runs/new", data=body | {"kinds": "check"})
    assert sent.status_code == 422
    assert 'id="repository-error"' in sent.text


def test_every_unknown_name_is_told_without_stray_quotes(client: TestClient, lab: Lab) -> None:
    with lab.database.session() as session:
        registry.record_catalogue(session, lab.commits[lab.shas[-1]], catalogue(("square", "cube")))
    form = {"repository": "kernels", "commits": "main", "variants": "v9 <foo>", "operators": "square", "kinds": "check"}
    for path in ("/runs/new", "/runs/preview"):
        page = client.post(path, data=form).text
        assert "no variant <code>v9</code>" in page, path
        assert "no variant <code>&lt;foo&gt;</code>" in page, path
    page = client.post("/runs/new", data=form | {"variants": "", "kinds": "compare"}).text
    assert "choose a commit, <code>parent</code> or <code>merge-base</code>" in page


def test_a_repository_that_cannot_be_fetched_keeps_the_input(client: TestClient, lab: Lab, tmp_path: Path) -> None:
    with lab.database.session() as session:
        registry.ensure_repository(session, "gone", str(tmp_path / "gone"))
    sent = client.post("/runs/new", data={"repository": "gone", "commits": "my-branch", "kinds": "check"})
    assert sent.status_code == 422
    assert 'id="repository-error"' in sent.text
    assert 'value="my-branch"' in sent.text


def test_a_range_can_begin_at_the_first_commit(client: TestClient, lab: Lab) -> None:
    assert preview(client, commits=f"{lab.shas[0]}^..main")["commits"] == lab.shas
    assert preview(client, commits=f"{lab.shas[1]}^..main")["commits"] == lab.shas[1:]
