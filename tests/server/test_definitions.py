"""Repositories whose operators are defined beside their history: registration, versions, and what is measured again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CPU, PEAKS, run_git
from tests.server.test_code import problem
from tests.server.test_submissions import ask, jobs
from tests.worker import defined
from warpwatch.contract.spec import DefinitionsVersion
from warpwatch.contract.words import Reason
from warpwatch.db import registry, runs
from warpwatch.db.database import Database
from warpwatch.server.intake.scheduled_run import run_schedule
from warpwatch.settings import Settings

Commit = Callable[[dict[str, str]], str]


def repository(path: Path) -> Commit:
    """A new repository; a function that commits files to it and returns the id."""
    path.mkdir()
    run_git(path, "init", "--quiet", "--initial-branch", "main")

    def commit(files: dict[str, str]) -> str:
        for name, text in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        run_git(path, "add", "--all")
        run_git(path, "commit", "--quiet", "--allow-empty", "--message", ", ".join(files) or "nothing")
        return run_git(path, "rev-parse", "HEAD").strip()

    return commit


@pytest.fixture
def measured(tmp_path: Path) -> Commit:
    commit = repository(tmp_path / "measured")
    commit(defined.package())
    return commit


@pytest.fixture
def beside(tmp_path: Path) -> Commit:
    commit = repository(tmp_path / "beside")
    commit(defined.definitions())
    return commit


@pytest.fixture
def worker(database: Database) -> int:
    """A worker of the CPU device, and its id."""
    with database.session() as session:
        environment_id, device_id = registry.ensure_environment(session, CPU, PEAKS["cpu"])
        facts = {"environment_id": environment_id}
        return registry.register_worker(session, "node-1-cpu", device_id, "0", facts)


def register(client: TestClient, folder: Path, **fields: Any) -> Any:
    body = {"name": "kernels", "url": str(folder / "measured"), "definitions": str(folder / "beside")}
    return client.post("/api/v1/repositories", json=body | fields)


def test_jobs_measure_the_newest_definitions(
    client: TestClient, database: Database, tmp_path: Path, measured: Commit, beside: Commit, worker: int
) -> None:
    answer = register(client, tmp_path)
    assert answer.status_code == 201, answer.text
    first = answer.json()["definitions_sha"]
    assert answer.json()["definitions_url"] == str(tmp_path / "beside")
    assert register(client, tmp_path).status_code == 200, "repeating the same changes nothing"
    (job,) = jobs(client, ask(client, kinds=["bench"]).json()["id"])
    assert job["operator"] == "twice"
    with database.session() as session:
        claimed = runs.begin_run(session, job["id"], worker)
        assert claimed is not None
        assert claimed.request.definitions == DefinitionsVersion(str(tmp_path / "beside"), first)
    assert first[:8] in client.get(f"/jobs/{job['id']}").text
    second = beside({"operators/twice.py": "changed = True\n"})
    ask(client, kinds=["bench"])
    assert client.get("/api/v1/repositories/kernels").json()["definitions_sha"] == second
    assert second[:8] in client.get("/settings/repository?repository=kernels").text


def test_what_did_not_change_is_measured_again_once_its_definition_did(
    client: TestClient, tmp_path: Path, measured: Commit, beside: Commit, worker: int
) -> None:
    assert register(client, tmp_path).status_code == 201
    wanted = {"kinds": ["bench"], "skip_unchanged": True}
    ask(client, **wanted)

    def newest() -> dict[str, Any]:
        (job,) = jobs(client, ask(client, **wanted).json()["id"])
        return job

    measured({"README.md": "other words"})
    assert newest()["reason"] == Reason.UNCHANGED
    measured({"src/lib/__init__.py": "STATE = 'other code'\n"})
    assert newest()["reason"] is None
    # An operator that is defined beside it is none of its own.
    beside({"operators/other.py": "import torch\n"})
    measured({"README.md": "more words"})
    both = jobs(client, ask(client, **wanted).json()["id"])
    assert {job["operator"]: job["reason"] for job in both} == {"twice": Reason.UNCHANGED, "other": None}
    beside({"operators/_sizes.py": "SIZE = 101\n"})
    measured({"README.md": "again"})
    again = jobs(client, ask(client, **wanted).json()["id"])
    assert {job["operator"]: job["reason"] for job in again} == {"twice": None, "other": Reason.UNCHANGED}


def test_a_ref_holds_the_definitions_at_one_version(
    client: TestClient, tmp_path: Path, measured: Commit, beside: Commit, worker: int
) -> None:
    old = beside({})
    beside({"operators/other.py": "import torch\n"})
    answer = register(client, tmp_path, definitions=f"{tmp_path / 'beside'}@{old[:12]}")
    assert answer.status_code == 201, answer.text
    assert answer.json()["definitions_sha"] == old
    (job,) = jobs(client, ask(client, kinds=["bench"]).json()["id"])
    assert job["operator"] == "twice"


@pytest.mark.parametrize(
    "definitions", ["{}/beside@no-such-ref", "{}/nowhere", "{}/empty", "--upload-pack=touch", "ext::sh -c date"]
)
def test_definitions_that_cannot_be_used(
    client: TestClient, tmp_path: Path, measured: Commit, beside: Commit, definitions: str
) -> None:
    (tmp_path / "empty").mkdir()
    answer = register(client, tmp_path, definitions=definitions.format(tmp_path))
    assert [error["field"] for error in problem(answer, 422)["errors"]] == ["definitions"]
    assert all(error["remedy"] for error in answer.json()["errors"])
    form = {"name": "kernels", "url": str(tmp_path / "measured"), "definitions": definitions.format(tmp_path)}
    page = client.post("/repositories", data=form)
    assert page.status_code == 422
    assert 'id="definitions-error"' in page.text
    assert client.get("/api/v1/repositories").json()["items"] == []


def test_a_name_keeps_its_definitions(client: TestClient, tmp_path: Path, measured: Commit, beside: Commit) -> None:
    assert register(client, tmp_path).status_code == 201
    other = register(client, tmp_path, definitions=str(tmp_path / "other"))
    assert [error["field"] for error in problem(other, 409)["errors"]] == ["definitions"]
    changed = client.patch("/api/v1/repositories/kernels", json={"definitions": f"{tmp_path / 'beside'}@main"})
    assert changed.json()["definitions_ref"] == "main"
    removed = client.patch("/api/v1/repositories/kernels", json={"definitions": None})
    assert removed.json()["definitions_url"] is None
    assert removed.json()["definitions_sha"] is None


def test_definitions_that_broke_since_are_a_problem_of_the_next_submission(
    client: TestClient, tmp_path: Path, measured: Commit, beside: Commit, worker: int
) -> None:
    assert register(client, tmp_path).status_code == 201
    beside({"warpwatch.toml": "this is no TOML"})
    answer = ask(client, kinds=["bench"])
    assert [error["field"] for error in problem(answer, 422)["errors"]] == ["definitions"]


def test_the_form_registers_definitions(client: TestClient, tmp_path: Path, measured: Commit, beside: Commit) -> None:
    form = {"name": "kernels", "url": str(tmp_path / "measured"), "definitions": str(tmp_path / "beside")}
    assert client.post("/repositories", data=form, follow_redirects=False).status_code == 303
    assert str(tmp_path / "beside") in client.get("/settings/repository?repository=kernels").text


def test_a_schedule_measures_again_what_is_defined_anew(
    client: TestClient,
    database: Database,
    settings: Settings,
    tmp_path: Path,
    measured: Commit,
    beside: Commit,
    worker: int,
) -> None:
    assert register(client, tmp_path).status_code == 201
    body = {"repository": "kernels", "name": "nightly", "kind": "suite", "cron": "0 2 * * *", "kinds": ["bench"]}
    schedule = client.post("/api/v1/schedules", json=body).json()["id"]

    def made() -> int:
        with database.session() as session:
            registry.worker_heartbeat(session, worker)
        before = len(client.get("/api/v1/jobs", params={"limit": 200}).json()["items"])
        assert run_schedule(database, settings, schedule, datetime.now(UTC), due=False)
        return len(client.get("/api/v1/jobs", params={"limit": 200}).json()["items"]) - before

    assert (made(), made()) == (1, 0)
    beside({"operators/other.py": "import torch\n"})
    assert (made(), made()) == (1, 0), "the new operator alone"
    beside({"operators/_sizes.py": "SIZE = 101\n"})
    assert (made(), made()) == (1, 0), "the operator that imports it"
