"""The shipped example holds a whole investigation, and its repository can be made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from bench.example_rows import COMMITS, build
from warpwatch import git
from warpwatch.db.database import Database
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings
from warpwatch.worker.bundle import BundleReader
from warpwatch.worker.import_bundle import import_bundle

FOLDER = Path(__file__).parents[2] / "docs" / "example"
RESULTS, HISTORY = FOLDER / "rows.wwb", FOLDER / "rows.bundle"
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


def test_the_example_shows_what_its_commits_did(
    client: TestClient, settings: Settings, database: Database, shas: list[str]
) -> None:
    git.update_mirror(str(HISTORY), settings.home)
    import_bundle(database, RESULTS, "example-rows", "example", str(HISTORY))
    Judge(settings, database).sweep()
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
    assert 'class="timeline"' in page
    assert "warpwatch submit" not in page, "example data cannot be measured here"
    commit = client.get(f"/commits/{shas[SLOWER]}?repository=example-rows").text
    assert f"/regressions/{rows['slower']['id']}" in commit
    assert "Measure again" not in commit
    for address in ("/?repository=example-rows", "/regressions?repository=example-rows"):
        assert f"/regressions/{rows['slower']['id']}" in client.get(address).text
