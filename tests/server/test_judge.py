"""Suspicions from history, decided by paired rounds: nothing is listed before it is confirmed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, CPU, GPU, Lab, bench, commit, measurement, run_git
from tests.server.test_code import problem
from tests.waiting import wait_until
from warpwatch import git, git_branches
from warpwatch.contract.outcome import Finding
from warpwatch.contract.priorities import CONFIRM
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.server.judge import Judge, interpreter
from warpwatch.server.verdicts import suspicion
from warpwatch.server.verdicts.suspicion import MAX_PAIRS
from warpwatch.settings import Settings

V1, V2, V3 = (("v1", CASES[0]), ("v2", CASES[0]), ("v3", CASES[0]))


@pytest.fixture
def judge(settings: Settings, database: Database, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """A judge that suspects by times alone."""
    monkeypatch.setattr(suspicion, "_unseen", lambda window: [])
    git.update_mirror(str(lab.source), settings.home)
    return Judge(settings, database)


def listed(client: TestClient, verdict: str = "confirmed", **filters: Any) -> list[dict[str, Any]]:
    answer = client.get("/api/v1/regressions", params={"repository": "kernels", "verdict": verdict} | filters)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["items"]
    return rows


def compare_jobs(client: TestClient) -> list[dict[str, Any]]:
    """Waiting compare jobs, oldest first."""
    rows = client.get("/api/v1/jobs", params={"state": "queued"}).json()["items"]
    return [row for row in rows if row["kind"] == "compare"][::-1]


def rounds(ratio: float, base_ns: float = 10_000.0) -> tuple[list[float], list[float]]:
    base = [base_ns * (1 + 0.001 * (number % 5)) for number in range(12)]
    return base, [value * ratio * (1 + 0.0005 * (number % 3)) for number, value in enumerate(base)]


def test_a_slower_commit_is_suspected_compared_and_confirmed(client: TestClient, lab: Lab, judge: Judge) -> None:
    lab.bench(0, {V1: 10_000.0, V2: 10_000.0})
    lab.bench(1, {V1: 10_050.0, V2: 13_000.0})
    judge.sweep()
    assert listed(client) == []
    (suspected,) = listed(client, "suspected")
    assert (suspected["direction"], suspected["ratio"], suspected["series"]) == ("slower", 1.3, 1)
    (job,) = compare_jobs(client)
    assert (job["base_sha"], job["commit_sha"], job["priority"]) == (lab.shas[0], lab.shas[1], CONFIRM)
    assert client.get(f"/api/v1/jobs/{job['id']}").json()["spec"]["pairs"] == [["v2", CASES[0]]]

    lab.compare(job["id"], {V2: rounds(1.31)})
    judge.sweep()
    assert listed(client, "suspected") == []
    (row,) = listed(client)
    assert (row["base_sha"], row["head_sha"], row["direction"]) == (lab.shas[0], lab.shas[1], "slower")
    assert 1.30 < row["low"] <= row["ratio"] <= row["high"] < 1.32
    assert row["decided_at"]
    detail = client.get(f"/api/v1/regressions/{row['id']}").json()
    (series,) = detail["series"]
    assert (series["variant"], series["case"], series["verdict"], series["suspected_ratio"]) == (
        "v2",
        CASES[0],
        "confirmed",
        1.3,
    )
    assert len(series["base_ns"]) == len(series["head_ns"]) == 12
    assert client.get(f"/api/v1/traces/{detail['base_trace_id']}").json()["commit_sha"] == lab.shas[0]
    assert client.get(f"/api/v1/traces/{detail['head_trace_id']}").json()["commit_sha"] == lab.shas[1]
    assert f"--commit {lab.shas[1]}" in detail["replay"]
    assert f"--base {lab.shas[0]}" in detail["replay"]


def test_the_overview_marks_what_is_open(client: TestClient, lab: Lab, judge: Judge) -> None:
    lab.bench(0, {V1: 10_000.0})
    lab.bench(1, {V1: 13_000.0})
    judge.sweep()
    lab.compare(compare_jobs(client)[0]["id"], {V1: rounds(1.3)})
    judge.sweep()
    (row,) = listed(client)

    def marked() -> Any:
        params = {"repository": "kernels", "device": "test-cpu"}
        return client.get("/api/v1/overview", params=params).json()["items"][0]["regression_id"]

    assert marked() == row["id"]
    client.post(
        f"/api/v1/regressions/{row['id']}/triage", json={"state": "accepted", "note": "worth it", "author": "ann"}
    )
    assert marked() is None


def test_noise_is_dismissed(client: TestClient, lab: Lab, judge: Judge) -> None:
    lab.bench(0, {V1: 10_000.0})
    lab.bench(1, {V1: 11_500.0})
    judge.sweep()
    lab.compare(compare_jobs(client)[0]["id"], {V1: rounds(1.001)})
    judge.sweep()
    assert listed(client) == listed(client, "suspected") == []
    (row,) = listed(client, "dismissed")
    assert row["ratio"] == pytest.approx(1.0015, abs=0.001)
    judge.sweep()
    assert compare_jobs(client) == []


def test_changes_of_one_commit_are_one_regression(client: TestClient, lab: Lab, judge: Judge) -> None:
    """Confirmed if any series is; its ratio is the worst confirmed one. Faster and slower are told apart."""
    lab.bench(0, {V1: 10_000.0, V2: 10_000.0, V3: 10_000.0})
    lab.bench(1, {V1: 12_000.0, V2: 13_000.0, V3: 7_000.0})
    judge.sweep()
    assert {(row["direction"], row["series"], row["ratio"]) for row in listed(client, "suspected")} == {
        ("slower", 2, 1.3),
        ("faster", 1, 0.7),
    }
    jobs = {
        len(client.get(f"/api/v1/jobs/{job['id']}").json()["spec"]["pairs"]): job["id"] for job in compare_jobs(client)
    }
    lab.compare(jobs[2], {V1: rounds(1.2), V2: rounds(1.001)})
    lab.compare(jobs[1], {V3: rounds(0.7)})
    judge.sweep()
    found = {row["direction"]: row for row in listed(client)}
    assert found["slower"]["ratio"] == pytest.approx(1.2, rel=0.002)
    assert found["faster"]["ratio"] == pytest.approx(0.7, rel=0.002)
    verdicts = {
        s["variant"]: s["verdict"] for s in client.get(f"/api/v1/regressions/{found['slower']['id']}").json()["series"]
    }
    assert verdicts == {"v1": "confirmed", "v2": "dismissed"}
    assert [row["direction"] for row in listed(client, direction="faster")] == ["faster"]


def test_a_comparison_that_could_not_run_leaves_it_unsure(client: TestClient, lab: Lab, judge: Judge) -> None:
    lab.bench(0, {V1: 10_000.0, V2: 10_000.0})
    lab.bench(1, {V1: 13_000.0})
    lab.bench(2, {V2: 13_000.0})
    judge.sweep()
    first, second = compare_jobs(client)
    client.post(f"/api/v1/jobs/{first['id']}/cancel")
    lab.compare(second["id"], {V2: ([], [])}, Status.CRASHED)
    judge.sweep()
    assert listed(client) == []
    assert len(listed(client, "unsure")) == 2
    notes = {
        client.get(f"/api/v1/regressions/{row['id']}").json()["notes"][0]["note"] for row in listed(client, "unsure")
    }
    assert len(notes) == 2, "each note gives the reason of its own trial"
    client.post(f"/api/v1/jobs/{first['id']}/retry")
    lab.compare(first["id"], {V1: rounds(1.3)})
    judge.sweep()
    assert len(listed(client)) == 1


def test_backfill_in_any_order_compares_neighbours(client: TestClient, lab: Lab, judge: Judge) -> None:
    lab.bench(0, {V1: 10_000.0})
    lab.bench(2, {V1: 10_000.0})
    judge.sweep()
    assert compare_jobs(client) == []
    lab.bench(1, {V1: 13_000.0})
    judge.sweep()
    ranges = {(row["base_sha"], row["head_sha"], row["direction"]) for row in listed(client, "suspected")}
    assert ranges == {(lab.shas[0], lab.shas[1], "slower"), (lab.shas[1], lab.shas[2], "faster")}


def test_what_is_no_alarm(client: TestClient, lab: Lab, judge: Judge) -> None:
    lab.bench(0, {V1: 10_000.0, V2: 10_000.0, V3: 1_000.0})
    lab.bench(1, {V1: 10_300.0, V2: Status.CRASHED, V3: 1_150.0})
    lab.bench(2, {V1: 10_000.0, V2: 10_100.0, V3: 1_000.0}, spread=0.2)
    wrong = Finding(*V2, Status.WRONG, bench=bench(measurement(50_000.0, "hot")))
    lab.finish(lab.submit("bench", 3), lab.outcome([wrong]))
    lab.bench(4, {V2: 10_000.0})
    judge.sweep()
    lab.environment = replace(CPU, key="d" * 64, facts={"torch": "2.14.0"})
    lab.bench(3, {V1: 20_000.0})
    lab.environment = CPU
    lab.bench(4, {V1: 30_000.0}, origin="bundle")
    lab.switch(GPU)
    lab.bench(5, {V1: 40_000.0})
    judge.sweep()
    assert compare_jobs(client) == []
    for said in ("suspected", "confirmed", "dismissed", "unsure"):
        assert listed(client, said) == []


def test_another_branch_is_no_neighbour(client: TestClient, lab: Lab, settings: Settings, judge: Judge) -> None:
    run_git(lab.source, "checkout", "--quiet", "-b", "side", lab.shas[1])
    side = [commit(lab.source, f"Side {number}") for number in range(3)]
    run_git(lab.source, "checkout", "--quiet", "main")
    git.update_mirror(str(lab.source), settings.home)
    branched = Lab(lab.database, lab.source, [*lab.shas, *side], lab.folder)
    branched.bench(1, {V1: 10_000.0})
    branched.bench(2, {V1: 20_000.0})
    branched.bench(8, {V1: 10_000.0})
    branched.bench(5, {V1: 20_000.0})
    judge.sweep()
    (row,) = listed(client, "suspected")
    assert (row["base_sha"], row["head_sha"]) == (lab.shas[1], lab.shas[2])
    run_git(lab.source, "branch", "--quiet", "-D", "side")


def test_one_comparison_measures_the_most_changed_series_only(client: TestClient, lab: Lab, judge: Judge) -> None:
    cells = [(f"v{number}", CASES[0]) for number in range(MAX_PAIRS + 6)]
    lab.bench(0, dict.fromkeys(cells, 10_000.0))
    lab.bench(1, {cell: 11_000.0 + 100 * number for number, cell in enumerate(cells)})
    judge.sweep()
    pairs = client.get(f"/api/v1/jobs/{compare_jobs(client)[0]['id']}").json()["spec"]["pairs"]
    assert pairs == [list(cell) for cell in cells[: -MAX_PAIRS - 1 : -1]]


def test_triage(client: TestClient, lab: Lab, judge: Judge) -> None:
    lab.bench(0, {V1: 10_000.0})
    lab.bench(1, {V1: 13_000.0})
    judge.sweep()
    number = listed(client, "suspected")[0]["id"]
    url = f"/api/v1/regressions/{number}/triage"
    for state in ("acknowledged", "fixed", "new"):
        answer = client.post(url, json={"state": state, "note": f"now {state}", "author": "ann"})
        assert answer.json()["regression"]["state"] == state
    notes = client.get(f"/api/v1/regressions/{number}").json()["notes"]
    assert [(note["author"], note["state"], note["note"]) for note in notes] == [
        ("ann", state, f"now {state}") for state in ("acknowledged", "fixed", "new")
    ]
    assert problem(client.post(url, json={"state": "gone", "author": "ann"}), 422)["errors"]
    assert problem(client.post(url, json={"state": "fixed"}), 422)["errors"]
    problem(client.post("/api/v1/regressions/999/triage", json={"state": "fixed", "author": "ann"}), 404)
    problem(client.get("/api/v1/regressions/999"), 404)
    problem(client.get("/api/v1/regressions", params={"repository": "nobody"}), 404)
    assert (
        client.get("/api/v1/regressions.csv", params={"repository": "kernels", "verdict": "suspected"}).text.count("\n")
        == 2
    )


def test_verdicts_of_a_submission(client: TestClient, lab: Lab, judge: Judge) -> None:
    lab.bench(0, {V1: 10_000.0})
    judge.sweep()
    job = lab.bench(1, {V1: 13_000.0})
    url = f"/api/v1/submissions/{client.get(f'/api/v1/jobs/{job}').json()['job']['submission_id']}/verdicts"
    assert client.get(url).json() == {"pending": 1, "regressions": []}
    judge.sweep()
    assert client.get(url).json() == {"pending": 1, "regressions": []}
    lab.compare(compare_jobs(client)[0]["id"], {V1: rounds(1.3)})
    judge.sweep()
    body = client.get(url).json()
    assert (body["pending"], [row["direction"] for row in body["regressions"]]) == (0, ["slower"])


def test_a_result_that_cannot_be_judged_keeps_no_other_waiting(
    client: TestClient, lab: Lab, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.bench(0, {V1: 10_000.0})
    lab.bench(1, {V1: 13_000.0})
    real, seen = interpreter.judge_job, []

    def fail_once(database: Any, mirrors: Any, job: Any, trial_share: float) -> None:
        seen.append(job.id)
        if len(seen) == 1:
            raise ValueError("nobody thought of this")
        real(database, mirrors, job, trial_share)

    monkeypatch.setattr(interpreter, "judge_job", fail_once)
    judge.sweep()
    assert len(listed(client, "suspected")) == 1
    judge.sweep()
    assert len(seen) == len(set(seen))


def test_two_servers_judge_each_job_once(client: TestClient, lab: Lab, settings: Settings, judge: Judge) -> None:
    import threading

    lab.operators = ("square", "cube")
    for index in range(4):
        for operator in lab.operators:
            lab.bench(index, {V1: 10_000.0 if index < 3 else 13_000.0}, operator=operator)
    threads = [threading.Thread(target=Judge(settings, lab.database).sweep) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(listed(client, "suspected")) == len(compare_jobs(client)) == 2


@pytest.mark.parametrize("lease", [1.5])
def test_the_thread_judges_and_gives_lost_jobs_back(served: Settings, client: TestClient, lab: Lab) -> None:
    git.update_mirror(str(lab.source), served.home)
    lab.bench(0, {V1: 10_000.0})
    lab.bench(1, {V1: 13_000.0})
    lost = lab.submit("check", 0)
    lab.begin(lost)

    def progress() -> tuple[str, bool]:
        return client.get(f"/api/v1/jobs/{lost}").json()["job"]["state"], bool(listed(client, "suspected"))

    wait_until(lambda: progress() == ("queued", True), 15, pause=0.2, explain=progress)


def test_a_mirror_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(git.GitError, match="needs the folder"):
        git_branches.merged_at(tmp_path / "gone", "a" * 40, "b" * 40)
