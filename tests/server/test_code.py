"""Repositories, operators and commits over REST."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from tests.builders import CASES, Lab, commit, run_git
from tests.rewording import Switch, stored
from warpwatch.contract.words import Status


def problem(answer: Any, status: int) -> dict[str, Any]:
    """The RFC 9457 body of an answer that must have that status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["detail"]
    return body


def test_register_and_list_repositories(client: TestClient, source: tuple[Path, list[str]]) -> None:
    assert client.get("/api/v1/repositories").json() == {"items": [], "next_before": None}
    body = {"name": "kernels", "url": str(source[0])}
    first = client.post("/api/v1/repositories", json=body)
    assert first.status_code == 201
    flags = dict.fromkeys(("has_webhook_secret", "has_status_token", "is_example", "is_public"), False)
    unset = dict.fromkeys(("status_url", "definitions_url", "definitions_ref", "definitions_sha")) | flags
    given = {"id": 0, "name": "kernels", "url": str(source[0]), "commits": 0, "branch": "main"}
    assert first.json() | {"id": 0} == given | unset
    again = client.post("/api/v1/repositories", json=body)
    assert again.status_code == 200
    assert again.json()["id"] == first.json()["id"]
    assert client.get("/api/v1/repositories").json()["items"] == [first.json()]


def test_a_repository_that_git_cannot_read_is_not_registered(client: TestClient, tmp_path: Path) -> None:
    answer = client.post("/api/v1/repositories", json={"name": "none", "url": str(tmp_path / "nothing")})
    errors = problem(answer, 422)["errors"]
    assert [error["field"] for error in errors] == ["url"]
    assert client.get("/api/v1/repositories").json()["items"] == []


def test_names_and_urls_that_could_do_harm_are_refused(client: TestClient, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    for name, url, field in (
        ("../x", "/srv", "name"),
        ("x", f"ext::touch {witness}", "url"),
        ("x", "--upload-pack=x", "url"),
    ):
        answer = client.post("/api/v1/repositories", json={"name": name, "url": url})
        assert [error["field"] for error in problem(answer, 422)["errors"]] == [field]
    assert not witness.exists()


def test_one_name_means_one_url(client: TestClient, source: tuple[Path, list[str]], tmp_path: Path) -> None:
    client.post("/api/v1/repositories", json={"name": "kernels", "url": str(source[0])})
    problem(client.post("/api/v1/repositories", json={"name": "kernels", "url": str(tmp_path)}), 409)


def test_a_detached_head_can_be_measured(client: TestClient, lab: Lab, tmp_path: Path) -> None:
    """CI checks out commits that no branch has; HEAD means what it means there, and follows it."""
    source = tmp_path / "detached"
    source.mkdir()
    run_git(source, "init", "--quiet", "--initial-branch", "main")
    commit(source, "On main")
    run_git(source, "checkout", "--quiet", "--detach")
    commit(source, "On no branch")
    assert client.post("/api/v1/repositories", json={"name": "ci", "url": str(source)}).status_code == 201
    for number in range(2):
        sha = commit(source, f"Change {number} on no branch")
        for ref in ("HEAD", sha):
            made = client.post("/api/v1/submissions", json={"repository": "ci", "commits": ref})
            assert made.status_code == 201, made.text
            jobs = client.get("/api/v1/jobs", params={"submission": made.json()["id"]}).json()["items"]
            assert {job["commit_sha"] for job in jobs} == {sha}


def test_operators_and_cases(client: TestClient, lab: Lab) -> None:
    lab.check(0, {("v1", CASES[0]): Status.OK})
    (operator,) = client.get("/api/v1/operators", params={"repository": "kernels"}).json()["items"]
    assert operator["name"] == "square"
    assert operator["variants"] == ["v1", "v2", "v3"]
    cases = client.get("/api/v1/operators/square/cases", params={"repository": "kernels"}).json()["items"]
    assert {case["key"] for case in cases} == set(CASES)
    assert {"flops": 1000, "bytes": 8000, "precision": "f32"}.items() <= cases[0].items()
    problem(client.get("/api/v1/operators/cube/cases", params={"repository": "kernels"}), 404)
    problem(client.get("/api/v1/operators", params={"repository": "nobody"}), 404)
    problem(client.get("/api/v1/operators"), 422)


def test_commits_are_paged_in_the_order_of_history(client: TestClient, lab: Lab) -> None:
    seen, before = [], None
    while True:
        params: dict[str, Any] = {"repository": "kernels", "limit": 4} | ({"before": before} if before else {})
        page = client.get("/api/v1/commits", params=params).json()
        seen += [row["sha"] for row in page["items"]]
        before = page["next_before"]
        if before is None:
            break
    assert seen == lab.shas[::-1]


def test_a_commit_counts_its_newest_results_only(client: TestClient, lab: Lab) -> None:
    lab.check(
        1, {("v1", CASES[0]): Status.WRONG, ("v2", CASES[0]): Status.CRASHED, ("v3", CASES[0]): Status.UNSUPPORTED}
    )
    lab.bench(1, {("v1", CASES[0]): 1000.0, ("v2", CASES[0]): Status.TIMED_OUT})
    row = client.get("/api/v1/commits", params={"repository": "kernels"}).json()["items"][-2]
    assert (row["points"], row["wrong"], row["broken"]) == (1, 1, 1), "v2 broke in both of its jobs"
    lab.check(1, {("v1", CASES[0]): Status.OK, ("v2", CASES[0]): Status.OK})
    row = client.get("/api/v1/commits", params={"repository": "kernels"}).json()["items"][-2]
    assert (row["points"], row["wrong"], row["broken"]) == (1, 0, 1)


def test_commit_shows_every_cell(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {("v1", CASES[0]): 1000.0})
    lab.check(1, {("v1", CASES[0]): Status.OK, ("v2", CASES[0]): Status.WRONG})
    lab.bench(1, {("v1", CASES[0]): 1300.0})
    lab.profile(1, "v1")
    url = f"/api/v1/commits/{lab.shas[1][:10]}"
    detail = client.get(url, params={"repository": "kernels"}).json()
    assert detail["commit"]["sha"] == lab.shas[1]
    (build,) = detail["builds"]
    assert (build["operator"], build["status"], build["cached"], build["seconds"]) == ("square", "ok", False, 1.5)
    assert [(kernel["name"], kernel["registers"]) for kernel in build["resources"]] == [("kernel", 32)]
    (tally,) = detail["operators"]
    assert (tally["operator"], tally["cells"], tally["failing"], tally["right"], tally["wrong"]) == (
        "square",
        2,
        1,
        1,
        1,
    )
    assert detail["device_keys"] == ["test-cpu"]
    v2, v1 = client.get(f"{url}/cells", params={"repository": "kernels"}).json()["items"]
    assert (v1["is_failing"], v2["is_failing"]) == (False, True)
    assert (v1["check_status"], v1["bench_status"], v1["profile_status"]) == ("ok", "ok", "ok")
    assert v1["median_ns"] == 1300.0
    assert v1["change"] == 1.3
    assert client.get(f"/api/v1/traces/{v1['trace_id']}").status_code == 200
    assert (v2["check_status"], v2["check_message"], v2["bench_status"], v2["median_ns"]) == (
        "wrong",
        stored("it was wrong"),
        None,
        None,
    )
    rows = list(csv.DictReader(io.StringIO(client.get(f"{url}.csv", params={"repository": "kernels"}).text)))
    assert [row["variant"] for row in rows] == ["v2", "v1"]


def test_a_commit_is_found_by_a_unique_beginning_only(client: TestClient, lab: Lab) -> None:
    for sha in ("abcd1234", "f" * 40):
        problem(client.get(f"/api/v1/commits/{sha}", params={"repository": "kernels"}), 404)
    for sha in ("abc", "zzzz", "%25%25%25%25"):
        problem(client.get(f"/api/v1/commits/{sha}", params={"repository": "kernels"}), 422)


def test_text_from_a_commit_does_not_become_a_formula(client: TestClient, lab: Lab) -> None:
    """A spreadsheet runs what begins with =."""
    job = lab.submit("check", 0)
    run = lab.begin(job)
    from warpwatch.db import runs

    with lab.database.session() as session:
        runs.fail_run(session, run, "=HYPERLINK(1)", retry=False)
    (row,) = csv.DictReader(io.StringIO(client.get("/api/v1/jobs.csv").text))
    assert row["message"] == (stored("=HYPERLINK(1)") if Switch.is_on else "'=HYPERLINK(1)")
