"""A benchmark program of a repository from a submission to a verdict: its jobs, its suspicion, its trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CPU, Lab, run_git
from warpwatch import git
from warpwatch.contract.catalogue import Catalogue
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.formats import ForeignBenchmark, ForeignResults, case_entry, list_findings, operator_entry
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings

TOML = '[[program]]\nname = "sums"\ncommand = "python bench.py"\nformat = "plain"\nsources = ["bench.py"]\n'
TIMES = [100_000.0, 100_200.0, 99_900.0, 100_100.0, 130_000.0, 130_100.0]


@pytest.fixture
def lab(database: Database, tmp_path: Path) -> Lab:
    """Six commits that each change the program, and nothing that is an operator file."""
    path, shas = tmp_path / "program", []
    path.mkdir()
    run_git(path, "init", "--quiet", "--initial-branch", "main")
    (path / "warpwatch.toml").write_text(TOML)
    for number in range(6):
        (path / "bench.py").write_text(f"# {number}\n")
        run_git(path, "add", "--all")
        run_git(path, "commit", "--quiet", "--message", f"Change {number}")
        shas.append(run_git(path, "rev-parse", "HEAD").strip())
    return Lab(database, path, shas, folder=tmp_path, operators=("sums",))


def outcome(median_ns: float) -> Outcome:
    low, high = 0.999 * median_ns, 1.001 * median_ns
    samples = [low, median_ns, high]
    benchmark = ForeignBenchmark(
        "sum/8", samples_ns=samples, median_ns=median_ns, low_ns=low, high_ns=high, noise=0.002, sizes={"n": 8}
    )
    results = ForeignResults("plain", "cpu", "", {}, [benchmark])
    catalogue = Catalogue(1, [operator_entry("sums", "plain: python bench.py", [case_entry("sum/8", {"n": 8})])])
    return Outcome(CPU, None, catalogue, findings=list_findings(results, "cpu"))


def bench(lab: Lab, index: int, median_ns: float) -> None:
    lab.finish(lab.submit("bench", index, operator="sums"), outcome(median_ns))


def queued(client: TestClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get("/api/v1/jobs", params={"state": "queued"}).json()["items"]
    return rows


def submit(client: TestClient, commits: str, **more: Any) -> Any:
    body = {"repository": "kernels", "commits": commits, "device": "test-cpu"} | more
    return client.post("/api/v1/submissions", json=body)


def test_a_program_is_submitted_like_an_operator(client: TestClient, lab: Lab) -> None:
    answer = submit(client, lab.shas[0])
    assert answer.status_code == 201, answer.text
    assert {(job["operator"], job["kind"]) for job in queued(client)} == {("sums", "check"), ("sums", "bench")}


def test_a_known_program_is_submitted_with_its_benchmarks(client: TestClient, lab: Lab) -> None:
    bench(lab, 0, TIMES[0])
    assert submit(client, lab.shas[1], kinds=["bench"], cases=["sum/8"]).status_code == 201
    refused = submit(client, lab.shas[1], kinds=["bench"], cases=["sum/9"])
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "cases"
    assert submit(client, lab.shas[1], kinds=["compare"], base=lab.shas[0]).status_code == 201
    assert [job["kind"] for job in queued(client) if job["base_sha"]] == ["compare"]


def test_a_slower_program_is_suspected_compared_and_confirmed(
    client: TestClient, lab: Lab, settings: Settings, database: Database
) -> None:
    git.update_mirror(str(lab.source), settings.home)
    judge = Judge(settings, database)
    for index, median_ns in enumerate(TIMES):
        bench(lab, index, median_ns)
    judge.sweep()
    # Where few readings let a change hide, changed sources alone ask for comparisons, too.
    (job,) = [job for job in queued(client) if job["base_sha"] == lab.shas[3]]
    assert (job["kind"], job["operator"], job["commit_sha"]) == ("compare", "sums", lab.shas[4])
    rounds = Comparison(
        "program",
        "sum/8",
        "hot",
        "plain",
        Status.OK,
        base_ns=[100_000.0 + n for n in range(8)],
        head_ns=[130_000.0 - n for n in range(8)],
    )
    lab.finish(job["id"], Outcome(CPU, comparisons=[rounds]))
    judge.sweep()
    (row,) = client.get("/api/v1/regressions", params={"repository": "kernels"}).json()["items"]
    assert (row["operator"], row["phase"], row["culprit_sha"]) == ("sums", "culprit", lab.shas[4])
    assert row["ratio"] == pytest.approx(1.3, abs=0.001)
    detail = client.get(f"/api/v1/regressions/{row['id']}").json()
    assert [(item["case"], item["variant"]) for item in detail["series"]] == [("sum/8", "program")]
    assert client.get(f"/regressions/{row['id']}").status_code == 200


def test_unreadable_results_are_a_mark_of_the_history(client: TestClient, lab: Lab) -> None:
    bench(lab, 0, TIMES[0])
    failed = Outcome(CPU, findings=[Finding("program", "sum/8", Status.UNREADABLE, "half a JSON")])
    lab.finish(lab.submit("bench", 1, operator="sums"), failed)
    (series,) = client.get("/api/v1/series", params={"repository": "kernels", "operator": "sums"}).json()["items"]
    history = client.get(f"/api/v1/history/{series['id']}").json()
    assert [(mark["commit_sha"], mark["status"]) for mark in history["marks"]] == [(lab.shas[1], "unreadable")]
    page = client.get("/history", params={"repository": "kernels", "operator": "sums", "device": "test-cpu"})
    assert page.status_code == 200
