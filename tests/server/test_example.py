"""The shipped example holds a whole investigation, and its repository can be made again."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from bench.example_rows import COMMITS, build
from tests.builders import Lab
from tests.conftest import emptied
from warpwatch import git
from warpwatch.bundle import BundleReader
from warpwatch.contract.rounds import times_of_rounds
from warpwatch.db.database import Database
from warpwatch.server.intake.bundles import import_bundle
from warpwatch.server.judge import Judge
from warpwatch.server.reports.formats import change, duration
from warpwatch.settings import Settings

FOLDER = Path(__file__).parents[2] / "docs" / "example"
RESULTS, HISTORY = FOLDER / "rows.wwb", FOLDER / "rows.bundle"
FOREIGN = FOLDER / "liger.wwb"
SLOWER, WRONG, RIGHT_AGAIN, FASTER = 10, 6, 8, 3
"""Numbers of the commits with known faults, and of their opposite."""


@pytest.fixture(scope="module")
def shas(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return build(tmp_path_factory.mktemp("rows") / "rows")


def test_the_results_are_of_the_repository_that_the_script_makes(shas: list[str], tmp_path: Path) -> None:
    assert len(shas) == len(COMMITS)
    with BundleReader(RESULTS) as bundle:
        assert [commit.sha for commit in bundle.manifest.commits] == shas
    mirror = git.update_mirror(str(HISTORY), tmp_path)
    assert git.first_parents(mirror, git.resolve(mirror, "main"))[::-1] == shas


@pytest.fixture(scope="module")
def database_url(shared_database: Database) -> str:
    """Of the database that every test here reads."""
    return emptied(shared_database)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, database_url: str) -> Settings:
    return Settings(home=tmp_path_factory.mktemp("example") / "home", database_url=database_url)


@pytest.fixture(scope="module")
def example(settings: Settings, shared_database: Database) -> None:
    """The example is imported and judged."""
    git.update_mirror(str(HISTORY), settings.home)
    import_bundle(shared_database, RESULTS, "example-rows", "example", str(HISTORY))
    Judge(settings, shared_database).sweep()


@pytest.mark.usefixtures("example")
def test_the_example_shows_what_its_commits_did(client: TestClient, shas: list[str]) -> None:
    asked = {"repository": "example-rows", "state": "any"}
    rows = {row["direction"]: row for row in client.get("/api/v1/regressions", params=asked).json()["items"]}
    assert {direction: shas.index(row["culprit_sha"]) for direction, row in rows.items()} == {
        "slower": SLOWER,
        "broken": WRONG,
        "faster": FASTER,
    }
    assert (rows["broken"]["phase"], rows["broken"]["fixed_by_sha"]) == ("reverted", shas[RIGHT_AGAIN])
    assert (rows["slower"]["phase"], rows["slower"]["state"]) == ("culprit", "new")
    assert rows["slower"]["low"] > 1.1
    detail: dict[str, Any] = client.get(f"/api/v1/regressions/{rows['slower']['id']}").json()
    purposes = [trial["purpose"] for trial in detail["trials"]]
    assert purposes[0] == "confirm"
    assert purposes.count("bisect") >= 2
    assert all(trial["answer"] in ("changed", "same") and trial["rounds"] >= 3 for trial in detail["trials"])
    assert detail["base_trace_id"]
    assert detail["head_trace_id"]
    assert all(series["base_ns"] for series in detail["series"])
    page = client.get(f"/regressions/{rows['slower']['id']}").text
    assert "static_cast&lt;double&gt;" in page, "the diff"
    most = max(detail["series"], key=lambda series: series["ratio"])
    before, after = map(duration, times_of_rounds(most["base_ns"], most["head_ns"]))
    assert f"{before} → {after}" in page
    assert f"{before} → {after}" in client.get(f"/jobs/{detail['compare_job_id']}").text
    page = client.get(f"/regressions/{rows['slower']['id']}", params={"evidence": "trace"}).text
    assert 'class="timeline"' in page
    assert "warpwatch submit" not in page, "example data cannot be measured here"
    commit = client.get(f"/commits/{shas[SLOWER]}?repository=example-rows").text
    assert f"/regressions/{rows['slower']['id']}" in commit
    assert "Measure again" not in commit
    for address in ("/overview?repository=example-rows", "/regressions?repository=example-rows"):
        assert f"/regressions/{rows['slower']['id']}" in client.get(address).text


@pytest.mark.usefixtures("example")
def test_an_environment_is_known_since_it_measured(client: TestClient, database: Database) -> None:
    """Not since its results were imported."""
    with database.session() as s:
        first = s.execute(text("SELECT environment_id, min(started_at) FROM runs GROUP BY environment_id")).one()
    assert datetime.fromisoformat(client.get(f"/api/v1/environments/{first[0]}").json()["created_at"]) == first[1]
    assert "first seen just now" not in client.get("/devices").text


@pytest.mark.usefixtures("example")
def test_every_page_says_the_same_of_the_slow_down(client: TestClient, shas: list[str]) -> None:
    """Overview, operator, history, commit, regression, job, report and badge, as pages and as JSON."""

    def read(address: str, **asked: Any) -> Any:
        answer = client.get(f"/api/v1{address}", params={"repository": "example-rows", **asked})
        assert answer.status_code == 200, (address, answer.text)
        return answer.json()

    sha = shas[SLOWER]
    (row,) = [row for row in read("/regressions", state="open")["items"] if row["direction"] == "slower"]
    detail = client.get(f"/api/v1/regressions/{row['id']}").json()
    ratios = {series["case"]: series["ratio"] for series in detail["series"]}
    assert row["ratio"] == max(ratios.values())
    cells = [cell for cell in read("/overview", device=row["device_key"])["items"] if cell["regression_id"]]
    assert {cell["case"]: cell["regression_ratio"] for cell in cells} == ratios
    assert {(cell["regression_id"], cell["regression_sha"]) for cell in cells} == {(row["id"], sha)}
    for series in detail["series"]:
        changes = client.get(f"/api/v1/history/{series['series_id']}").json()["changes"]
        assert [(found["regression_id"], found["ratio"]) for found in changes] == [(row["id"], series["ratio"])]
        assert change(series["ratio"]) in client.get(f"/history/{series['series_id']}").text
    compared = read(f"/commits/{sha}/cells", show="changed")["items"]
    assert {cell["case"]: cell["compared"] for cell in compared} == ratios
    beside = read("/compare", device=row["device_key"], left=row["base_sha"], right=sha)["items"]
    assert {item["case"]: item["paired_ratio"] for item in beside if item["paired_outcome"] == "slower"} == ratios
    report = client.get("/api/v1/submissions/1/report").json()
    slower = [found for found in report["rows"] if found["kind"] == "slower"]
    assert {found["case"]: found["ratio"] for found in slower} == ratios
    for side in ("base_ns", "head_ns"):
        taken = {
            series["case"]: times_of_rounds(series["base_ns"], series["head_ns"])[side == "head_ns"]
            for series in detail["series"]
        }
        assert {found["case"]: found[side] for found in slower} == taken
    assert {found["head_sha"] for found in slower} == {sha}
    assert "1 slower" in client.get("/api/v1/badges/example-rows.svg").text
    job = client.get(f"/api/v1/jobs/{detail['trials'][0]['job_id']}").json()
    members = {series["series_id"] for series in detail["series"]}
    lengths = [len(item["base_ns"]) for item in job["decision"]["compared"] if item["series_id"] in members]
    assert detail["trials"][0]["rounds"] == max(lengths), "the rounds of other series do not count"
    for address in ("/overview", "/kernels/softmax", "/regressions", f"/regressions/{row['id']}", f"/commits/{sha}"):
        page = client.get(address, params={"repository": "example-rows"}).text
        assert change(row["ratio"]) in page, address
        assert sha[:8] in page or address.startswith("/kernels"), address


@pytest.mark.usefixtures("example")
def test_the_queue_names_the_repository_of_other_jobs(client: TestClient, lab: Lab) -> None:
    own = lab.submit("check", 0)
    page = client.get("/runs/jobs", params={"repository": "kernels", "state": "all"}).text
    assert page.count("of example-rows</span>") == len(client.get("/api/v1/jobs").json()["items"]) - 1
    links = {link.replace("&amp;", "&") for link in re.findall(r'class="sha" href="([^"]*)"', page)}
    assert any("repository=example-rows" in link for link in links)
    assert {client.get(link).status_code for link in links} == {200}
    assert client.get(f"/api/v1/jobs/{own}").json()["job"]["repository"] == "kernels"


@pytest.mark.nightly
def test_the_foreign_history_names_the_commits_that_its_comparisons_confirmed(
    settings: Settings, database: Database, client: TestClient
) -> None:
    import_bundle(database, FOREIGN, "example-liger", "example")
    Judge(settings, database).sweep()
    rows = client.get("/api/v1/regressions", params={"repository": "example-liger", "state": "any"}).json()["items"]
    culprits = {(row["operator"], row["direction"], row["culprit_sha"][:8]) for row in rows if row["culprit_sha"]}
    assert culprits == {
        (operator, direction, sha)
        for operator, sha in (("layer_norm", "6a2c4913"), ("rms_norm", "b27b4c5f"))
        for direction in ("slower", "faster")
    } | {("layer_norm", "faster", "540575bc")}
    oldest = "08f2ea46"
    page = client.get(f"/commits/{oldest}?repository=example-liger").text
    assert "Compare with parent" not in page, "its parent was not submitted"
    for row in rows:
        if row["culprit_sha"]:
            detail = client.get(f"/api/v1/regressions/{row['id']}").json()
            assert detail["base_trace_id"]
            assert detail["head_trace_id"]
        if (row["operator"], row["direction"]) == ("layer_norm", "slower"):
            # Of the commits between, 88ffbdfc was confirmed faster on one other case, and its own times are slow.
            fixes = {series["fixed_by_sha"] for series in detail["series"]} - {None}
            assert {sha[:8] for sha in fixes} == {"540575bc"}
            assert row["partly_fixed_by_sha"] in fixes
