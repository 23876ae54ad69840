"""Results of other programs, imported: series of a protocol of their own, that history alone judges."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from typer.testing import CliRunner

from tests.builders import CASES, Lab, commit, make_repository, run_git
from warpwatch import git
from warpwatch.cli.app import app as command
from warpwatch.db.database import Database
from warpwatch.db.models import RegressionRecord
from warpwatch.server.judge import Judge
from warpwatch.server.threads.awaiting import AwaitedFileThread
from warpwatch.settings import Settings

PLACE = {"repository": "kernels", "format": "plain", "program": "sums"}
FILES = Path(__file__).parents[1] / "foreign"
SUSPECTED = {"repository": "kernels", "state": "any", "verdict": "suspected"}


def results(microseconds: float, *, name: str = "sum/n=8", device: str = "test-cpu") -> dict[str, Any]:
    samples = [microseconds * (1 + shift / 1000) for shift in (-2, -1, 0, 1, 2)]
    benchmark = {"name": name, "unit": "us", "samples": samples, "sizes": {"n": 8}}
    return {"warpwatch_results": 1, "device": device, "benchmarks": [benchmark]}


def post(client: TestClient, sha: str, data: Any, **changes: str) -> Any:
    content = data if isinstance(data, bytes) else json.dumps(data).encode()
    return client.post("/api/v1/imports", params=PLACE | {"commit": sha} | changes, content=content)


@pytest.fixture
def judge(settings: Settings, database: Database, lab: Lab) -> Judge:
    git.update_mirror(str(lab.source), settings.home)
    return Judge(settings, database)


def history(client: TestClient, operator: str = "sums") -> list[dict[str, Any]]:
    """The series of an operator, each with its points."""
    rows = client.get("/api/v1/series", params={"repository": "kernels", "operator": operator}).json()["items"]
    return [row | client.get(f"/api/v1/history/{row['id']}").json() for row in rows]


def test_an_imported_file_becomes_a_point_of_a_series(client: TestClient, lab: Lab) -> None:
    answer = post(client, lab.shas[2], results(1.5))
    assert answer.status_code == 201, answer.text
    assert answer.json()["new"]
    (series,) = history(client)
    assert (series["case"], series["variant"], series["metric"]) == ("sum/n=8", "program", "hot")
    assert series["protocol"] == "plain"
    (point,) = series["points"]
    assert (point["commit_sha"], point["median_ns"], point["count"]) == (lab.shas[2], 1500.0, 5)
    page = client.get("/history", params={"repository": "kernels", "operator": "sums", "device": "test-cpu"})
    assert page.status_code == 200
    assert "sum/n=8" in page.text
    for address in ("/kernels/sums", f"/commits/{lab.shas[2]}", "/"):
        assert client.get(address, params={"repository": "kernels"}).status_code == 200


def test_the_same_file_is_imported_once_for_a_commit(client: TestClient, lab: Lab) -> None:
    first, again = (post(client, lab.shas[2], results(1.5)).json() for _ in range(2))
    assert not again["new"]
    assert again["submission_id"] == first["submission_id"]
    assert post(client, lab.shas[3], results(1.5)).json()["new"], "another commit may have the same times"
    assert sum(len(series["points"]) for series in history(client)) == 2


def test_series_of_two_protocols_are_never_joined(client: TestClient, lab: Lab) -> None:
    lab.bench(1, {("v1", CASES[0]): 20_000.0})
    post(client, lab.shas[2], results(900.0, name=CASES[0]), program="square")
    protocols = {row["protocol"]: row for row in history(client, "square") if row["metric"] == "hot"}
    assert set(protocols) == {"1", "plain"}
    assert [len(row["points"]) for row in protocols.values()] == [1, 1]


def test_a_program_leaves_the_other_operators_of_its_commit_in_the_catalogue(client: TestClient, lab: Lab) -> None:
    lab.bench(2, {("v1", CASES[0]): 20_000.0})
    post(client, lab.shas[2], results(1.5))
    names = {row["name"] for row in client.get("/api/v1/operators", params={"repository": "kernels"}).json()["items"]}
    assert {"square", "sums"} <= names
    preview = client.post(
        "/api/v1/submissions/preview",
        json={
            "repository": "kernels",
            "commits": lab.shas[2],
            "operators": ["square"],
            "variants": ["v1"],
            "device": "all",
        },
    )
    assert preview.status_code == 200, preview.text


@pytest.mark.parametrize(
    ("changes", "data", "field"),
    [
        ({}, b'{"warpwatch_results": 1, "bench', "file"),
        ({}, {"warpwatch_results": 7, "benchmarks": []}, "file"),
        ({"format": "criterion"}, results(1.5), "format"),
        ({"commit": "0" * 40}, results(1.5), "commit"),
        ({"commit": "--upload-pack=x"}, results(1.5), "commit"),
        ({"repository": "nothing"}, results(1.5), "repository"),
        ({"program": "../x"}, results(1.5), "program"),
        ({}, results(1.5, device=""), "device"),
    ],
)
def test_what_cannot_be_imported_names_its_field(
    client: TestClient, lab: Lab, changes: dict[str, str], data: Any, field: str
) -> None:
    answer = post(client, changes.pop("commit", lab.shas[2]), data, **changes)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    (error,) = answer.json()["errors"]
    assert error["field"] == field
    assert error["remedy"]
    assert history(client) == []


def imported_history(client: TestClient, lab: Lab, times: list[float]) -> None:
    for sha, microseconds in zip(lab.shas, times, strict=True):
        assert post(client, sha, results(microseconds)).status_code == 201


def test_history_alone_suspects_what_was_measured_elsewhere(client: TestClient, lab: Lab, judge: Judge) -> None:
    """And it stays suspected: no paired comparison is possible, and none is asked for."""
    imported_history(client, lab, [100.0, 100.2, 99.9, 100.1, 130.0, 130.2])
    judge.sweep()
    (row,) = client.get("/api/v1/regressions", params=SUSPECTED).json()["items"]
    assert (row["operator"], row["direction"], row["phase"]) == ("sums", "slower", "unpaired")
    assert (row["base_sha"], row["head_sha"]) == (lab.shas[3], lab.shas[4])
    assert row["ratio"] == pytest.approx(1.3, abs=0.01)
    assert row["settled_at"]
    assert client.get("/api/v1/jobs", params={"state": "queued"}).json()["items"] == []
    page = client.get(f"/regressions/{row['id']}")
    assert page.status_code == 200
    assert "data-unpaired" in page.text
    (change,) = history(client)[0]["changes"]
    assert (change["regression_id"], change["phase"]) == (row["id"], "unpaired")
    assert change["ratio"] == pytest.approx(1.3, abs=0.01)
    place = {"repository": "kernels", "operator": "sums", "device": "test-cpu"}
    assert f'data-regression="{row["id"]}"' in client.get("/history", params=place).text
    assert (
        f'data-regression="{row["id"]}"' in client.get(f"/commits/{lab.shas[4]}", params={"repository": "kernels"}).text
    )


@pytest.mark.parametrize("written_by", ["google-benchmark", "plain"])
def test_a_few_nanoseconds_that_a_program_reports_are_suspected(
    client: TestClient, lab: Lab, judge: Judge, written_by: str
) -> None:
    """A mean over many iterations is finer than any clock, so no least absolute change counts."""
    for sha, nanoseconds in zip(lab.shas, [15.0, 15.01, 14.99, 15.0, 16.5, 16.51], strict=True):
        row = {"name": "BM_hash", "real_time": nanoseconds, "time_unit": "ns"}
        values = {"context": {"host_name": "node-a"}, "benchmarks": [row]}
        data = results(nanoseconds / 1000) if written_by == "plain" else values
        assert post(client, sha, data, format=written_by).status_code == 201
    judge.sweep()
    (row,) = client.get("/api/v1/regressions", params=SUSPECTED).json()["items"]
    assert (row["direction"], row["phase"], row["head_sha"]) == ("slower", "unpaired", lab.shas[4])


def test_a_later_point_opens_no_second_suspicion(
    client: TestClient, lab: Lab, judge: Judge, database: Database
) -> None:
    imported_history(client, lab, [100.0, 100.2, 99.9, 100.1, 130.0, 130.2])
    judge.sweep()
    for microseconds in (130.1, 130.3):
        post(client, lab.shas[5], results(microseconds))
        judge.sweep()
    with database.session() as session:
        assert session.query(RegressionRecord).count() == 1


def test_noise_of_what_was_measured_elsewhere_suspects_nothing(client: TestClient, lab: Lab, judge: Judge) -> None:
    imported_history(client, lab, [100.0, 103.0, 98.0, 101.0, 104.0, 99.0])
    judge.sweep()
    assert client.get("/api/v1/regressions", params=SUSPECTED).json()["items"] == []


def test_results_of_a_closed_node_are_judged(client: TestClient, lab: Lab, judge: Judge) -> None:
    """Files of `warpwatch run`, as those of other programs."""
    for index, median in enumerate([20_000.0, 20_020.0, 19_990.0, 20_010.0, 26_000.0, 26_010.0]):
        lab.bench(index, {("v1", CASES[0]): median}, origin="bundle")
    judge.sweep()
    (row,) = client.get("/api/v1/regressions", params=SUSPECTED).json()["items"]
    assert (row["phase"], row["head_sha"]) == ("unpaired", lab.shas[4])


def test_the_command_imports_a_file_with_its_samples(
    client: TestClient, lab: Lab, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPWATCH_DATABASE_URL", str(settings.database_url))
    monkeypatch.setenv("WARPWATCH_HOME", str(settings.home))
    file = tmp_path / "nvbench.json"
    file.write_bytes((FILES / "nvbench.json").read_bytes())
    (tmp_path / "nvbench.json-bin").mkdir()
    (tmp_path / "nvbench.json-bin" / "0.bin").write_bytes(struct.pack("<4f", 1e-5, 2e-5, 3e-5, 6e-5))
    outside = tmp_path.parent / "outside.bin"
    outside.write_bytes(struct.pack("<4f", 9e-5, 9e-5, 9e-5, 9e-5))
    (tmp_path / "nvbench.json-bin" / "1.bin").symlink_to(outside)
    words = ["import", str(file), "--repository", "kernels", "--commit", lab.shas[1], "--format"]
    done = CliRunner().invoke(command, [*words, "nvbench"])
    assert done.exit_code == 0, done.output
    points = {row["case"]: row["points"][0] for row in history(client, "nvbench")}
    assert points["copy,Elements=1048576,T=F32"]["count"] == 4
    assert points["copy,Elements=1048576,T=F32"]["median_ns"] == pytest.approx(12_500)
    assert points["copy,Elements=16777216,T=F32"]["median_ns"] == pytest.approx(150_000), "links are not followed"
    assert CliRunner().invoke(command, [*words, "plain"]).exit_code == 2
    assert CliRunner().invoke(command, words[:-1]).exit_code == 2, "a commit without a format"


def github_history(times: dict[str, float]) -> bytes:
    """A history of github-action-benchmark: nanoseconds by commit."""
    entries = [
        {
            "commit": {"id": sha},
            "date": 1_700_000_000_000 + place,
            "benches": [{"name": "f", "value": ns, "unit": "ns"}],
        }
        for place, (sha, ns) in enumerate(times.items())
    ]
    return b"window.BENCHMARK_DATA = " + json.dumps({"entries": {"Benchmark": entries}}).encode()


def test_a_history_brings_every_commit_and_a_longer_one_only_what_is_new(client: TestClient, lab: Lab) -> None:
    place = {"repository": "kernels", "format": "github-action-benchmark", "program": "sums", "device": "ci-runner"}
    for count in (3, 5):
        times = {sha: 50.0 + place for place, sha in enumerate(lab.shas[:count])} | {"f" * 40: 1.0}
        answer = client.post("/api/v1/imports", params=place, content=github_history(times))
        assert answer.status_code == 201, answer.text
        assert answer.json()["left_out"] == [f"{'f' * 8}: no such commit in this repository"]
    (series,) = history(client)
    assert [(point["commit_sha"], point["median_ns"]) for point in series["points"]] == [
        (sha, 50.0 + place) for place, sha in enumerate(lab.shas[:5])
    ]
    jobs = client.get("/api/v1/jobs", params={"state": "done"}).json()["items"]
    assert {job["finished_at"][:4] for job in jobs} == {"2023"}, "it happened when it was measured"
    refused = client.post("/api/v1/imports", params=place | {"commit": "main"}, content=github_history(times))
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "commit")


def test_the_command_imports_folders_and_standard_input_by_the_commits_that_files_name(
    client: TestClient, lab: Lab, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPWATCH_DATABASE_URL", str(settings.database_url))
    monkeypatch.setenv("WARPWATCH_HOME", str(settings.home))
    values = json.loads((FILES / "pytest_benchmark.json").read_bytes())
    storage = tmp_path / "storage" / "Linux-CPython-3.13-64bit"
    storage.mkdir(parents=True)
    for place, sha in enumerate(lab.shas[:2]):
        about = {"commit_info": {"id": sha, "dirty": False}}
        (storage / f"000{place}_{sha}.json").write_text(json.dumps(values | about))
    changed = json.dumps(values | {"commit_info": {"id": lab.shas[3], "dirty": True}})
    words = ["import", "--repository", "kernels", "--format"]
    done = CliRunner().invoke(command, [*words, "pytest-benchmark", str(storage.parent)])
    assert done.exit_code == 0, done.output
    assert done.output.count(": imported") == 2
    refused = CliRunner().invoke(command, [*words, "pytest-benchmark", "-"], input=changed)
    assert refused.exit_code == 2
    assert "-: commit: the file was measured with changes that are in no commit" in refused.output
    waiting = CliRunner().invoke(command, [*words, "pytest-benchmark", "-", "--commit", "f" * 40], input=changed)
    assert f"waits until the repository has the commit {'f' * 8}\n" in waiting.output
    taken = CliRunner().invoke(
        command, [*words, "pytest-benchmark", "-", "--commit", lab.shas[3], "--confirm"], input=changed
    )
    assert taken.exit_code == 0, taken.output
    newest = client.get("/api/v1/submissions", params={"repository": "kernels"}).json()["items"][0]
    assert newest["request"]["confirm"]
    measured = {point["commit_sha"] for row in history(client, "pytest_benchmark") for point in row["points"]}
    assert measured == {lab.shas[0], lab.shas[1], lab.shas[3]}


def test_results_wait_for_a_commit_that_the_repository_does_not_hold_yet(
    client: TestClient, database: Database, settings: Settings, tmp_path: Path
) -> None:
    source, author = tmp_path / "source", tmp_path / "author"
    lab = Lab(database, source, make_repository(source, 2), tmp_path)
    run_git(tmp_path, "clone", "--quiet", str(source), str(author))
    sha = commit(author, "Not pushed yet")
    first, again = (post(client, sha, results(1.5), name="late.json") for _ in range(2))
    assert (first.status_code, first.json()) == (
        201,
        {"submission_id": None, "new": True, "left_out": [], "awaits": sha},
    )
    assert not again.json()["new"]
    never = "f" * 40
    post(client, never, results(1.5), name="never.json")
    post(client, "e" * 40, results(1.5), name="mistaken.json")
    assert post(client, sha[:12], results(1.5)).status_code == 422, "an abbreviation may be a slip"
    importer = AwaitedFileThread(settings, database)
    importer.sweep()
    listed = {"repository": "kernels"}
    states = {item["name"]: item["state"] for item in client.get("/api/v1/imports", params=listed).json()["items"]}
    assert states == dict.fromkeys(("late.json", "never.json", "mistaken.json"), "waiting")
    page = client.get("/runs", params=listed).text
    assert page.count('data-awaited="waiting"') == 3
    assert f">{sha[:8]}<" in page
    assert history(client) == []
    run_git(source, "fetch", "--quiet", str(author), "main:pushed")
    with database.session() as session:
        session.execute(text("UPDATE awaited_files SET created_at = '2026-01-02' WHERE name <> 'mistaken.json'"))
        moved = "UPDATE awaited_files SET program = 'no name', commit_sha = :sha WHERE name = 'mistaken.json'"
        session.execute(text(moved), {"sha": lab.shas[0]})
    AwaitedFileThread(settings, database).sweep()
    (series,) = history(client)
    assert [point["commit_sha"] for point in series["points"]] == [sha]
    jobs = client.get("/api/v1/jobs", params={"state": "done"}).json()["items"]
    assert {job["finished_at"][:10] for job in jobs} == {"2026-01-02"}, "when it came"
    rows = client.get("/api/v1/imports", params=listed).json()["items"]
    assert {row["name"]: (row["state"], row["message"][:30]) for row in rows} == {
        "never.json": ("refused", "the repository did not get the"),
        "mistaken.json": ("refused", "program: 'no name' is no name;"),
    }
    assert "did not get the commit within 30 days" in client.get("/runs", params=listed).text
    assert post(client, never, results(1.5), name="never.json").json()["new"], "it waits anew"


def test_a_file_that_was_renamed_counts_once(client: TestClient, lab: Lab) -> None:
    first = post(client, lab.shas[2], results(1.5), name="a.json").json()
    again = post(client, lab.shas[2], results(1.5), name="copy of a.json").json()
    assert (again["new"], again["submission_id"]) == (False, first["submission_id"])
    assert sum(len(series["points"]) for series in history(client)) == 1


def test_what_cannot_be_read_is_named_and_costs_no_other_benchmark(client: TestClient, lab: Lab) -> None:
    data = results(1.5)
    data["benchmarks"] += ["row", {"name": "broken", "unit": "us", "value": "fast"}]
    answer = post(client, lab.shas[2], data).json()
    assert answer["left_out"] == [
        "benchmarks[1]: expected an object, got 'row'",
        "broken: value: expected a finite number, got 'fast'; give the file as the program wrote it",
    ]
    points = {row["case"]: row["points"] for row in history(client)}
    assert len(points["sum/n=8"]) == 1


def test_results_of_two_models_in_one_file_belong_to_two_devices(client: TestClient, lab: Lab) -> None:
    values = json.loads((FILES / "nvbench.json").read_bytes())
    values["devices"].append(values["devices"][0] | {"id": 1, "name": "NVIDIA L4"})
    state = values["benchmarks"][0]["states"][1]
    values["benchmarks"][0]["states"].append(state | {"device": 1})
    assert post(client, lab.shas[2], values, format="nvbench").status_code == 201
    devices = {item["key"]: item["kind"] for item in client.get("/api/v1/devices").json()["items"]}
    assert devices.items() >= {"nvidia-h100-80gb-hbm3": "cuda", "nvidia-l4": "cuda"}.items()
    measured = {(row["device_key"], len(row["points"])) for row in history(client)}
    assert ("nvidia-l4", 1) in measured


@pytest.mark.parametrize("name", ["龙芯 3A6000", "Эльбрус"])
def test_a_device_may_have_a_name_in_any_script(client: TestClient, lab: Lab, name: str) -> None:
    assert post(client, lab.shas[2], results(1.5, device=name), program="сумма").status_code == 201
    (series,) = history(client, "сумма")
    assert name in {item["name"] for item in client.get("/api/v1/devices").json()["items"]}
    page = client.get("/history", params={"repository": "kernels", "operator": "сумма", "device": series["device_key"]})
    assert page.status_code == 200
