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
from warpwatch.db import registry, runs


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

    def planned(**fields: Any) -> tuple[float | None, int]:
        (device,) = preview(client, operators=["square"], **fields)["devices"]
        return device["minutes"], device["unknown_jobs"]

    assert planned(kinds=["check"]) == (1.5, 0)
    assert planned(kinds=["check"], commits="main~2..main") == (3.0, 0)
    assert planned(kinds=["check", "bench"]) == (1.5, 1)
    assert planned(kinds=["bench"]) == (None, 1)
    assert planned(kinds=["check"], suite="full") == (None, 1)


def test_minutes_are_not_those_of_another_repository(client: TestClient, lab: Lab, tmp_path: Path) -> None:
    lab.check(0, {("v1", CASES[0]): Status.OK})
    make_repository(tmp_path / "other", commits=2)
    client.post("/api/v1/repositories", json={"name": "other", "url": str(tmp_path / "other")})
    (device,) = preview(client, repository="other", kinds=["check"])["devices"]
    assert (device["minutes"], device["unknown_jobs"]) == (None, 1)


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
    assert [row["sha"] for row in preview(client, repository="pushed", commits="late")["commits"]] == [sha]


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
    for first in (0, 1):
        plan = preview(client, commits=f"{lab.shas[first]}^..main")
        assert {row["sha"] for row in plan["commits"]} == set(lab.shas[first:])
        # Who writes A^..B has asked for A, and needs no word on what A..B would leave out.
        assert plan["left_out"] == []


@pytest.fixture
def merged(client: TestClient, lab: Lab, tmp_path: Path) -> tuple[Path, list[str]]:
    """A registered repository `merged`: a first commit, words, a branch of two commits, its merge, a commit that takes
    all operators away; the ids along first parents."""
    path = tmp_path / "merged"
    make_repository(path, commits=1, operators=("square", "cube"))
    write(path, "README.md", "words")
    run_git(path, "checkout", "--quiet", "-b", "side")
    commit(path, "Side 1")
    commit(path, "Side 2")
    run_git(path, "checkout", "--quiet", "main")
    run_git(path, "merge", "--quiet", "--no-ff", "--message", "Merge side", "side")
    run_git(path, "rm", "--quiet", "-r", "kernels")
    run_git(path, "commit", "--quiet", "--message", "Remove all")
    client.post("/api/v1/repositories", json={"name": "merged", "url": str(path)})
    return path, run_git(path, "rev-list", "--first-parent", "--reverse", "main").split()


def write(path: Path, name: str, text: str) -> None:
    (path / name).write_text(text)
    run_git(path, "add", "--all")
    run_git(path, "commit", "--quiet", "--message", f"Write {name}")


def test_a_plan_says_what_is_left_out_and_why(client: TestClient, merged: tuple[Path, list[str]]) -> None:
    path, (root, words, merge, removal) = merged
    plan = preview(client, repository="merged", commits=f"{root}..main", kinds=["bench"])
    left_out = {group["reason"]: group for group in plan["left_out"]}
    assert {reason: [row["subject"] for row in group["commits"]] for reason, group in left_out.items()} == {
        "range_start": ["Change 1"],
        "merged_branch": ["Side 2", "Side 1"],
        "no_operator": ["Remove all"],
    }
    assert f"Write {root[:12]}^..B to measure the first commit of the history" in left_out["range_start"]["message"]
    assert plan["commits"] == [
        {"sha": merge, "subject": "Merge side", "jobs": 1, "unchanged": {"cube": words}},
        {"sha": words, "subject": "Write README.md", "jobs": 2, "unchanged": {}},
    ]
    whole = preview(client, repository="merged", commits=f"{root}^..main", kinds=["bench"])
    assert {group["reason"]: [row["sha"] for row in group["commits"]] for group in whole["left_out"]}["unchanged"] == [
        words
    ]
    run_git(path, "checkout", "--quiet", "-b", "other", root)
    commit(path, "Other 1")
    other = preview(client, repository="merged", commits="main..other", kinds=["bench"])
    assert ([row["subject"] for row in other["commits"]], other["left_out"]) == (["Other 1"], []), (
        "what main holds is not measured by main^..other either"
    )
    assert (whole["jobs"], whole["unchanged"]) == (3, 3)
    every = preview(client, repository="merged", commits=f"{root}^..main", kinds=["bench"], skip_unchanged=False)
    assert (every["jobs"], every["unchanged"]) == (6, 0)
    assert removal not in {row["sha"] for row in every["commits"]}


def test_the_form_shows_the_plan(client: TestClient, merged: tuple[Path, list[str]]) -> None:
    _, (root, *_) = merged
    form = {"repository": "merged", "commits": f"{root}..main", "kinds": "bench"}
    page = client.post("/runs/preview", data=form).text
    for words in (
        "3 jobs",
        "1 more skipped as unchanged",
        "Time unknown",
        "Left out: 2 commits of merged branches",
        "Side 2",
        "Left out: 1 commit before the range",
    ):
        assert words in page, words
    assert "skipped as unchanged" not in client.post("/runs/preview", data=form | {"skip_unchanged": "false"}).text


def test_the_box_of_the_form_measures_everything(client: TestClient, merged: tuple[Path, list[str]]) -> None:
    _, (root, words, *_) = merged
    form = {"repository": "merged", "commits": words, "kinds": "bench", "suite": "quick"}
    client.post("/runs/new", data=form | {"commits": root})
    counts = []
    for more in ({}, {"skip_unchanged": "false"}):
        client.post("/runs/new", data=form | more)
        counts.append(client.get("/api/v1/submissions?limit=1").json()["items"][0]["counts"])
    assert counts == [{"done": 2}, {"queued": 2}]
    page = client.get(f"/runs/new?repository=merged&commits={words}&skip_unchanged=false").text
    assert 'name="skip_unchanged" value="false" checked' in page


def test_the_queue_begins_with_the_newest_commit_of_what_changed(client: TestClient, lab: Lab, tmp_path: Path) -> None:
    """Of nine commits that changed `square`; `cube` stayed as it was, and comes first in the alphabet."""
    path = tmp_path / "nine"
    shas = make_repository(path, commits=1, operators=("cube", "square"))
    shas += [commit(path, f"Change {number}") for number in range(2, 10)]
    client.post("/api/v1/repositories", json={"name": "nine", "url": str(path)})
    request = {"repository": "nine", "commits": f"{shas[0]}^..main", "kinds": ["check", "bench"]}
    made = client.post("/api/v1/submissions", json=request).json()["id"]
    rows = client.get("/api/v1/jobs", params={"submission": made, "state": "queued", "limit": 200}).json()["items"]
    queue = [
        (row["operator"], row["kind"], shas.index(row["commit_sha"])) for row in sorted(rows, key=lambda r: r["id"])
    ]
    assert [(name, number) for name, kind, number in queue if kind == "bench"] == [
        *(("square", number) for number in (8, 0, 4, 6, 2, 7, 5, 3, 1)),
        ("cube", 0),
    ]
    assert [kind for _, kind, _ in queue] == ["check", "bench"] * 10
    with lab.database.session() as session:
        claimed = [runs.claim_next(session, lab.device, lab.worker) for _ in range(4)]
    assert [(job.request.operator, job.request.sha) for job in claimed if job] == [
        ("square", shas[8]),
        ("square", shas[8]),
        ("square", shas[0]),
        ("square", shas[0]),
    ]
