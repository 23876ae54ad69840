"""Asking for measurements over REST: jobs that come of it, every field that can be wrong, cancel and retry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, GPU, Lab, bench, catalogue, commit, make_repository, measurement, run_git
from tests.server.test_code import problem
from warpwatch.contract.catalogue import CaseEntry, Catalogue, OperatorEntry
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.db import registry, runs

URL = "/api/v1/submissions"


def ask(client: TestClient, **fields: Any) -> Any:
    return client.post(URL, json={"repository": "kernels", "commits": "main", "device": "cpu"} | fields)


def errors(answer: Any) -> dict[str, str]:
    """Field → message and remedy of a refused submission."""
    return {error["field"]: f"{error['message']}; {error['remedy']}" for error in problem(answer, 422)["errors"]}


def jobs(client: TestClient, submission: int) -> list[dict[str, Any]]:
    """Jobs of a submission in the order they are worked off."""
    return client.get("/api/v1/jobs", params={"submission": submission, "limit": 200}).json()["items"][::-1]


def know(lab: Lab, operators: tuple[str, ...] = ("square", "cube")) -> None:
    """A worker has read the catalogue of the newest commit."""
    with lab.database.session() as session:
        registry.record_catalogue(session, lab.commits[lab.shas[-1]], catalogue(operators))


def test_one_job_per_commit_operator_kind_and_device(client: TestClient, lab: Lab) -> None:
    answer = ask(
        client, commits=f"{lab.shas[3]}..main", kinds=["profile", "check", "bench"], priority=3, seed=7, budget_ms=50
    )
    assert answer.status_code == 201, answer.text
    body = answer.json()
    assert body["counts"] == {"queued": 12}
    assert (body["state"], body["origin"], body["results"], body["finished_at"]) == ("queued", "api", {}, None)
    assert answer.headers["location"] == f"{URL}/{body['id']}"
    made = jobs(client, body["id"])
    expected = [
        (sha, op, kind)
        for sha in lab.shas[:3:-1]
        for op in ("cube", "square")
        for kind in ("check", "bench", "profile")
    ]
    assert [(job["commit_sha"], job["operator"], job["kind"]) for job in made] == expected
    assert [job["position"] for job in made] == list(range(12))
    assert {job["priority"] for job in made} == {3}
    spec = client.get(f"/api/v1/jobs/{made[0]['id']}").json()["spec"]
    assert spec == {"suite": "quick", "variants": None, "cases": None, "seed": 7, "budget_ns": 50_000_000}


def test_operators_are_measured_in_the_order_of_the_request(client: TestClient, lab: Lab) -> None:
    named = ["square", "cube", "square"]
    made = jobs(client, ask(client, kinds=["check", "bench"], operators=named, case_limit=2).json()["id"])
    assert [(job["operator"], job["kind"]) for job in made] == [
        (operator, kind) for operator in ("square", "cube") for kind in ("check", "bench")
    ]
    detail = client.get(f"/api/v1/jobs/{made[0]['id']}").json()
    assert detail["spec"]["case_limit"] == 2
    assert "--case-limit 2" in detail["replay"]
    assert "case_limit" in errors(ask(client, case_limit=0))


def test_a_sanitizer_goes_with_checks_alone(client: TestClient, lab: Lab) -> None:
    assert errors(ask(client, sanitize="address"))["sanitize"].endswith("choose kind check only, or no sanitizer")
    assert "sanitize" in errors(ask(client, sanitize="valgrind", kinds=["check"]))
    refused = errors(ask(client, sanitize="racecheck", kinds=["check"]))["sanitize"]
    assert refused == "racecheck checks code of a GPU, and the run has none; use address, or choose another device"
    (first, *_) = jobs(client, ask(client, sanitize="address", kinds=["check"]).json()["id"])
    detail = client.get(f"/api/v1/jobs/{first['id']}").json()
    assert detail["spec"]["sanitize"] == "address"
    assert "--sanitize address" in detail["replay"]


def test_the_queue_tells_how_many_come_before(client: TestClient, lab: Lab) -> None:
    waiting = ask(client, kinds=["check"], operators=["cube"]).json()["id"]
    urgent = ask(client, kinds=["check"], operators=["cube"], priority=5).json()["id"]
    running = lab.submit("check", 0)
    lab.begin(running)
    assert [job["position"] for job in jobs(client, urgent)] == [1]
    assert [job["position"] for job in jobs(client, waiting)] == [2]
    assert client.get(f"/api/v1/jobs/{running}").json()["job"]["position"] is None


def test_only_operators_that_a_commit_has_get_jobs(client: TestClient, lab: Lab, tmp_path: Path) -> None:
    source = tmp_path / "grown"
    first, *_ = make_repository(source, 1)
    second = commit(source, "Another operator", ("square", "cube"))
    (source / "warpwatch.toml").write_text('operators = "ops"\n')
    run_git(source, "mv", "kernels", "ops")
    run_git(source, "rm", "--quiet", "--force", "--cached", "ops/cube.py")
    run_git(source, "add", "warpwatch.toml", "ops/square.py")
    run_git(source, "commit", "--quiet", "--message", "Move")
    client.post("/api/v1/repositories", json={"name": "grown", "url": str(source)})
    made = jobs(client, ask(client, repository="grown", commits=f"{first}..main", kinds=["check"]).json()["id"])
    assert [(job["commit_subject"], job["operator"]) for job in made] == [
        ("Move", "square"),
        ("Another operator", "square"),
        ("Another operator", "cube"),
    ]
    assert {job["commit_sha"] for job in made[1:]} == {second}


def test_what_is_known_travels_with_the_job(client: TestClient, lab: Lab) -> None:
    know(lab)
    made = jobs(client, ask(client, kinds=["check"], operators=["square"], variants=["v2"]).json()["id"])
    spec = client.get(f"/api/v1/jobs/{made[0]['id']}").json()["spec"]
    assert spec["known"] == {"variants": ["v2"], "cases": [CASES[0], CASES[1]]}
    assert spec["variants"] == ["v2"]


def test_an_operator_whose_newest_file_does_not_load_is_known_from_before(client: TestClient, lab: Lab) -> None:
    know(lab)
    sick = Catalogue(1, [OperatorEntry("square", "", [], [], "SyntaxError")])
    newer = commit(lab.source, "Broken", ("square", "cube"))
    made = ask(client, commits=newer, kinds=["check"], operators=["square"])
    with lab.database.session() as session:
        number = client.get(f"/api/v1/commits/{newer}", params={"repository": "kernels"}).json()["commit"]["id"]
        registry.record_catalogue(session, number, sick)
    assert made.status_code == 201
    again = jobs(client, ask(client, commits=newer, kinds=["check"], operators=["square"]).json()["id"])
    assert client.get(f"/api/v1/jobs/{again[0]['id']}").json()["spec"]["known"]["variants"] == ["v1", "v2", "v3"]
    run_git(lab.source, "reset", "--quiet", "--hard", lab.shas[-1])


def test_devices(client: TestClient, lab: Lab) -> None:
    lab.switch(GPU)

    def devices(device: str) -> set[str]:
        return {job["device_key"] for job in jobs(client, ask(client, device=device, kinds=["check"]).json()["id"])}

    assert devices("all") == {"test-cpu", "test-gpu"}
    assert devices("cuda") == {"test-gpu"}
    assert devices("test-gpu") == {"test-gpu"}
    with lab.database.session() as session:
        registry.stop_worker(session, lab.worker)
    assert devices("all") == {"test-cpu"}
    assert devices("test-gpu") == {"test-gpu"}
    assert devices("cuda") == {"test-gpu"}, "its worker may be starting again"
    with lab.database.session() as session:
        session.execute(
            text("UPDATE workers SET heartbeat_at = now() - interval '2 days' WHERE stopped_at IS NOT NULL")
        )
    assert "start a worker with `warpwatch worker --device cuda:0`" in errors(ask(client, device="cuda"))["device"]
    assert "choose from: test-cpu, test-gpu, all" in errors(ask(client, device="abacus"))["device"]


def test_a_device_without_a_worker_queues_what_a_scheduler_will_run(client: TestClient, lab: Lab) -> None:
    unknown = ask(client, device="nvidia-h200")
    assert "warpwatch device add" in errors(unknown)["device"]
    body = {"key": "nvidia-h200", "is_elastic": True}
    added = client.post("/api/v1/devices", json=body)
    assert (added.status_code, added.json()["is_elastic"], added.json()["workers"]) == (200, True, 0)
    for device in ("nvidia-h200", "cuda"):
        made = ask(client, device=device, kinds=["check"])
        assert made.status_code == 201
        assert {job["device_key"] for job in jobs(client, made.json()["id"])} == {"nvidia-h200"}
    assert client.post("/api/v1/devices", json=body | {"kind": "cpu"}).status_code == 409
    assert client.post("/api/v1/devices", json=body | {"key": "No Slug"}).status_code == 422
    with lab.database.session() as session:
        # The first worker brings the name that people know.
        registry.ensure_device(session, "nvidia-h200", "cuda", "NVIDIA H200")
    listed = {row["key"]: row for row in client.get("/api/v1/devices").json()["items"]}
    assert (listed["nvidia-h200"]["name"], listed["nvidia-h200"]["is_elastic"]) == ("NVIDIA H200", True)
    assert client.post("/api/v1/devices", json={"key": "nvidia-h200"}).json()["is_elastic"] is False
    assert "device" in errors(ask(client, device="cuda"))


def test_the_same_key_twice_is_one_submission(client: TestClient, lab: Lab) -> None:
    body = {"repository": "kernels", "commits": "main", "device": "cpu"}
    first = client.post(URL, json=body, headers={"Idempotency-Key": "ci-1"})
    second = client.post(URL, json=body, headers={"Idempotency-Key": "ci-1"})
    assert first.json()["id"] == second.json()["id"]
    assert len(client.get(URL).json()["items"]) == 1
    problem(client.post(URL, json=body | {"priority": 1}, headers={"Idempotency-Key": "ci-1"}), 409)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"repository": "nobody"}, "repository", "registered: kernels"),
        ({"commits": "no-such-branch"}, "commits", "no commit, branch or tag 'no-such-branch'"),
        ({"commits": "--upload-pack=touch"}, "commits", "no commit, branch or tag"),
        ({"commits": "main..main"}, "commits", "holds no commits"),
        ({"commits": ""}, "commits", "at least 1 character"),
        ({"operators": ["sqare"]}, "operators", "did you mean: square"),
        ({"kinds": []}, "kinds", "at least 1 entry"),
        ({"kinds": ["guess"]}, "kinds[0]", "use 'check', 'bench', 'profile' or 'compare'"),
        ({"kinds": ["compare"]}, "base", "choose a commit, `parent` or `merge-base`"),
        ({"kinds": ["compare"], "base": "main~1"}, "kinds", "run check or bench first"),
        ({"kinds": ["compare"], "base": "nope"}, "base", "no commit, branch or tag"),
        ({"device": "cuda"}, "device", "start a worker with `warpwatch worker --device cuda:0`"),
        ({"priority": 11}, "priority", "at most 10"),
        ({"colour": "red"}, "colour", "leave it out"),
    ],
)
def test_every_field_says_what_is_wrong_and_what_to_do(
    client: TestClient, lab: Lab, fields: dict[str, Any], field: str, words: str
) -> None:
    found = errors(ask(client, **fields))
    assert words in found[field]
    assert client.get(URL).json()["items"] == []


def test_several_fields_are_reported_at_once(client: TestClient, lab: Lab) -> None:
    assert set(errors(ask(client, device="abacus", operators=["nothing"]))) == {"operators", "device"}
    found = errors(ask(client, kinds=["check"], commits="nope", base="neither"))
    assert found.keys() == {"commits", "base"}
    assert "itself" not in found["base"], "two names that git does not know are not one commit"


def test_names_are_held_against_the_newest_catalogue(client: TestClient, lab: Lab) -> None:
    know(lab)
    found = errors(ask(client, variants=["v9"], cases=["n=1024,f32,fwdd"]))
    assert "there is no variant 'v9'" in found["variants"]
    assert CASES[0] in found["cases"]
    assert "did you mean: full" in errors(ask(client, suite="ful"))["suite"]
    assert ask(client, variants=["v1"], cases=[CASES[2]], suite="nothing").status_code == 201


def test_undeclared_cases_are_taken_where_the_operator_can_have_them(client: TestClient, lab: Lab) -> None:
    know(lab)
    assert ask(client, kinds=["check"], cases=["n=77,f32,fwd"]).status_code == 201
    assert "cases" in errors(ask(client, kinds=["check"], cases=["rows=77,f32,fwd"]))
    short = jobs(client, ask(client, kinds=["check"], cases=["n=77", "n=77,f32"]).json()["id"])
    specs = [client.get(f"/api/v1/jobs/{job['id']}").json()["spec"] for job in short]
    assert [spec["cases"] for spec in specs] == [["n=77,f32,fwd"]] * 2, "both name the same case of either operator"
    for wrong in ("m=77", "n=77,f16", "n=77x3", "n=seventy"):
        assert CASES[0].split(",")[0] in errors(ask(client, kinds=["check"], cases=[wrong]))["cases"], wrong


def test_an_undeclared_case_is_a_series_of_its_own_and_is_marked(client: TestClient, lab: Lab) -> None:
    know(lab)
    asked = CaseEntry("n=77,f32,fwd", {"n": 77}, "f32", "fwd", "contiguous", [], 77, 616)
    (job,) = jobs(client, ask(client, kinds=["bench"], operators=["square"], cases=["n=77"]).json()["id"])
    timed = [Finding("v1", asked.key, Status.OK, bench=bench(measurement(1000.0, "hot")))]
    lab.finish(job["id"], replace(lab.outcome(timed), derived_cases=[asked]))
    lab.bench(5, {("v1", CASES[0]): 2000.0})
    query = {"repository": "kernels", "device": "test-cpu"}
    series = client.get("/api/v1/series", params={"repository": "kernels"}).json()["items"]
    assert {row["case"]: row["is_declared"] for row in series} == {asked.key: False, CASES[0]: True}
    cells = client.get("/api/v1/overview", params=query).json()["items"]
    assert {cell["case"] for cell in cells if not cell["is_declared"]} == {asked.key}
    (number,) = (row["id"] for row in series if row["case"] == asked.key and row["metric"] == "hot")
    # The list of cases marks it as well.
    for path, marks in ((f"/history/{number}", 2), ("/kernels/square", 2), ("/overview/cases/square", 1)):
        assert client.get(path, params=query).text.count("data-undeclared") == marks, path


def test_ten_thousand_commits_are_refused_with_their_count(client: TestClient, lab: Lab, tmp_path: Path) -> None:
    source = tmp_path / "long"
    (first,) = make_repository(source, 1)
    stream = "".join(
        f"commit refs/heads/long\nmark :{n}\ncommitter A <a@b> {1700000000 + n} +0000\ndata 1\nx\n"
        f"from {first if n == 1 else f':{n - 1}'}\n"
        for n in range(1, 10_001)
    )
    (tmp_path / "stream").write_text(stream)
    with (tmp_path / "stream").open() as file:
        import subprocess

        subprocess.run(["git", "fast-import", "--quiet"], cwd=source, stdin=file, check=True)
    client.post("/api/v1/repositories", json={"name": "long", "url": str(source)})
    found = errors(ask(client, repository="long", commits=f"{first}..long"))
    assert "holds 10000 commits; ask for at most 1000" in found["commits"]
    made = ask(client, repository="long", commits="long~200..long", kinds=["check"], skip_unchanged=False)
    assert made.json()["counts"] == {"queued": 200}
    newest = jobs(client, made.json()["id"])[0]["commit_sha"]
    assert client.get(f"/api/v1/commits/{newest}", params={"repository": "long"}).json()["commit"]["ordinal"] == 10_001


def test_a_repository_that_went_away_is_no_fault_of_the_request(client: TestClient, lab: Lab, tmp_path: Path) -> None:
    source = tmp_path / "gone"
    make_repository(source, 1)
    client.post("/api/v1/repositories", json={"name": "gone", "url": str(source)})
    source.rename(tmp_path / "elsewhere")
    assert "cannot be fetched" in str(problem(ask(client, repository="gone"), 502)["detail"])


def test_compare_two_commits(client: TestClient, lab: Lab) -> None:
    know(lab)
    (job,) = jobs(
        client, ask(client, kinds=["compare"], base="main~2", operators=["square"], variants=["v1", "v3"]).json()["id"]
    )
    assert (job["commit_sha"], job["base_sha"]) == (lab.shas[5], lab.shas[3])
    spec = client.get(f"/api/v1/jobs/{job['id']}").json()["spec"]
    assert spec["pairs"] == [["v1", CASES[0]], ["v3", CASES[0]], ["v1", CASES[1]], ["v3", CASES[1]]]
    assert "two single commits" in errors(ask(client, kinds=["compare"], base="main~2", commits="main~2..main"))["base"]


def test_cancel_and_retry_a_submission(client: TestClient, lab: Lab) -> None:
    number = ask(client, kinds=["check", "bench"], operators=["square"]).json()["id"]
    check = jobs(client, number)[0]["id"]
    lab.finish(check, lab.outcome([]))
    assert client.get(f"{URL}/{number}").json()["state"] == "running"
    cancelled = client.post(f"{URL}/{number}/cancel").json()
    assert (cancelled["state"], cancelled["counts"]) == ("cancelled", {"done": 1, "cancelled": 1})
    assert cancelled["finished_at"]
    retried = client.post(f"{URL}/{number}/retry").json()
    assert (retried["state"], retried["counts"]) == ("running", {"done": 1, "queued": 1})
    for verb in ("", "/verdicts"):
        problem(client.get(f"{URL}/999{verb}"), 404)
    for verb in ("cancel", "retry"):
        problem(client.post(f"{URL}/999/{verb}"), 404)


def test_results_are_counted_once_however_often_a_job_ran(client: TestClient, lab: Lab) -> None:
    job = lab.bench(0, {("v1", CASES[0]): Status.CRASHED, ("v2", CASES[0]): 1000.0})
    number = client.get(f"/api/v1/jobs/{job}").json()["job"]["submission_id"]
    assert client.get(f"{URL}/{number}").json()["results"] == {"crashed": 1, "ok": 1}
    client.post(f"/api/v1/jobs/{job}/retry")
    run = lab.begin(job)
    assert client.get(f"{URL}/{number}").json()["results"] == {"crashed": 1, "ok": 1}, "until the new attempt has some"
    with lab.database.session() as session:
        runs.fail_run(session, run, "lost", retry=True)
    lab.finish(job, lab.outcome([lab._timed("v1", CASES[0], 1000.0, 0.002), lab._timed("v2", CASES[0], 1000.0, 0.002)]))
    assert client.get(f"{URL}/{number}").json()["results"] == {"ok": 2}


def test_a_submission_fails_when_a_job_does(client: TestClient, lab: Lab) -> None:
    number = ask(client, kinds=["check"], operators=["square"]).json()["id"]
    run = lab.begin(jobs(client, number)[0]["id"])
    with lab.database.session() as session:
        runs.fail_run(session, run, "no compiler", retry=False)
    assert client.get(f"{URL}/{number}").json()["state"] == "failed"


def test_submissions_are_paged_and_filtered(client: TestClient, lab: Lab) -> None:
    ids = [ask(client, kinds=["check"]).json()["id"] for _ in range(5)]
    first = client.get(URL, params={"limit": 3}).json()
    second = client.get(URL, params={"limit": 3, "before": first["next_before"]}).json()
    assert [row["id"] for row in first["items"] + second["items"]] == ids[::-1]
    assert second["next_before"] is None
    assert client.get(f"{URL}.csv", params={"repository": "kernels"}).text.count("\n") == 6
    problem(client.get(URL, params={"repository": "nobody"}), 404)
    problem(client.get(URL, params={"limit": 201}), 422)


@pytest.mark.parametrize("what", ["link", "file", "description", "module"])
def test_an_odd_tree_is_a_matter_of_its_own_commit(client: TestClient, lab: Lab, tmp_path: Path, what: str) -> None:
    """A link in place of the operator folder, a folder in place of a file."""
    source = tmp_path / "odd"
    shas = make_repository(source, commits=2)
    if what in ("link", "file"):
        (source / "kernels").rename(source / "elsewhere")
        (source / "kernels").symlink_to("elsewhere") if what == "link" else (source / "kernels").write_text("x")
    elif what == "description":
        (source / "warpwatch.toml").unlink(missing_ok=True)
        (source / "warpwatch.toml").mkdir()
        (source / "warpwatch.toml" / "x").write_text("x")
    else:
        (source / "kernels" / "folder.py").mkdir()
        (source / "kernels" / "folder.py" / "x").write_text("x")
    run_git(source, "add", "--all")
    run_git(source, "commit", "--quiet", "--message", "odd")
    lab = Lab(lab.database, source, [*shas, run_git(source, "rev-parse", "HEAD").strip()], tmp_path)
    assert ask(client, commits=f"{shas[0]}..main", skip_unchanged=True).status_code == 201
    measured = {job["commit_sha"] for job in client.get("/api/v1/jobs").json()["items"]}
    assert measured == {shas[1]} | (set() if what in ("link", "file") else {lab.shas[2]})
    alone = ask(client, commits="main")
    if what in ("link", "file"):
        assert "kernels is a symbolic link or a file at" in errors(alone)["commits"]
    else:
        assert alone.status_code == 201
