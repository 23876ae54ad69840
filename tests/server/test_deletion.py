"""A deleted repository is gone at once for everybody, and row by row for the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, text
from typer.testing import CliRunner

from tests.builders import CASES, Lab
from tests.server.test_code import problem
from tests.server.test_judge import compare_jobs, judge, rounds
from warpwatch.contract.words import Status
from warpwatch.db import deletion, registry
from warpwatch.db.database import Database
from warpwatch.git import mirror_path
from warpwatch.server.judge import Judge
from warpwatch.server.threads import upkeep as cleaner
from warpwatch.server.threads.upkeep import RepositoryCleaner
from warpwatch.settings import Settings

API = "/api/v1"
V1 = ("v1", CASES[0])
KEPT = ("alembic_version", "audit_entries", "devices", "environments", "workers")
__all__ = ["judge"]


@pytest.fixture
def filled(client: TestClient, lab: Lab, judge: Judge) -> Lab:
    """A repository with everything that one can have."""
    lab.bench(0, {V1: 10_000.0})
    lab.bench(1, {V1: 13_000.0})
    lab.check(1, {V1: Status.WRONG})
    lab.profile(1)
    judge.sweep()
    lab.compare(compare_jobs(client)[0]["id"], {V1: rounds(1.3)})
    judge.sweep()
    (regression,) = client.get(f"{API}/regressions", params={"repository": "kernels"}).json()["items"]
    triage = {"state": "acknowledged", "note": "seen", "author": "ann"}
    assert client.post(f"{API}/regressions/{regression['id']}/triage", json=triage).status_code == 200
    client.post(f"{API}/jobs/1/strike-out", json={"reason": "hot"})
    lab.submit("bench", 2)
    lab.begin(lab.submit("bench", 3))
    body = {"name": "nightly", "kind": "suite", "cron": "0 1 * * *", "budget_minutes": 10, "device": "test-cpu"}
    client.post(f"{API}/schedules", json=body | {"repository": "kernels"})
    return lab


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner, "PAUSE_SECONDS", 0.0)


def row_counts(database: Database) -> dict[str, int]:
    with database.session() as session:
        tables = session.scalars(
            text("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace")
        ).all()
        counted = {table: session.scalar(text(f"SELECT count(*) FROM {table}")) for table in tables}
    return {table: int(count) for table, count in counted.items() if count and not table.startswith(KEPT)}


@pytest.mark.usefixtures("quick")
def test_nothing_is_left(client: TestClient, filled: Lab, settings: Settings, database: Database) -> None:
    assert len(row_counts(database)) > 15
    assert mirror_path(str(filled.source), settings.home).is_dir()
    assert client.delete(f"{API}/repositories/kernels").status_code == 204
    assert client.get(f"{API}/repositories").json()["items"] == []
    problem(client.get(f"{API}/repositories/kernels"), 404)
    problem(client.delete(f"{API}/repositories/kernels"), 404)
    assert client.get("/jobs/1").status_code == 404
    assert client.get("/").status_code == 200
    RepositoryCleaner(settings, database).sweep()
    assert row_counts(database) == {}
    assert not mirror_path(str(filled.source), settings.home).exists()


@pytest.mark.usefixtures("quick")
def test_others_keep_everything(client: TestClient, filled: Lab, settings: Settings, database: Database) -> None:
    """Also the mirror, which repositories of one address share; and the name is free at once."""
    before = row_counts(database)
    client.delete(f"{API}/repositories/kernels")
    again = Lab(database, filled.source, filled.shas, filled.folder)
    again.bench(0, {V1: 10_000.0})
    kept = client.get(f"{API}/overview", params={"repository": "kernels", "device": "test-cpu"}).json()
    RepositoryCleaner(settings, database).sweep()
    assert client.get(f"{API}/overview", params={"repository": "kernels", "device": "test-cpu"}).json() == kept
    assert 0 < row_counts(database)["all_results"] < before["all_results"]
    assert mirror_path(str(filled.source), settings.home).is_dir()


@pytest.mark.usefixtures("quick")
def test_every_transaction_is_small_and_a_restart_goes_on(
    client: TestClient, filled: Lab, settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = tuple((table, condition, 1) for table, condition, _ in deletion._STEPS)
    monkeypatch.setattr(deletion, "_STEPS", steps)
    client.delete(f"{API}/repositories/kernels")
    deleted: list[int] = []

    def count(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            deleted.append(cursor.rowcount)

    event.listen(database.engine, "after_cursor_execute", count)
    first = RepositoryCleaner(settings, database)
    waits = iter([False] * 12)
    monkeypatch.setattr(first._stop, "wait", lambda _: next(waits, True))
    first.sweep()
    assert row_counts(database), "it was stopped on the way"
    RepositoryCleaner(settings, database).sweep()
    event.remove(database.engine, "after_cursor_execute", count)
    assert row_counts(database) == {}
    assert max(deleted) == 1
    assert sum(deleted) > 20


@pytest.mark.usefixtures("quick")
def test_no_key_is_looked_up_without_an_index(database: Database) -> None:
    """Deleting a commit must not read every job to see whether it refers to the commit."""
    sql = """
    SELECT conrelid::regclass || '.' || attname FROM pg_constraint
    JOIN pg_attribute ON attrelid = conrelid AND attnum = conkey[1]
    WHERE contype = 'f' AND confrelid IN ('commits'::regclass, 'jobs'::regclass, 'runs'::regclass,
          'all_results'::regclass, 'all_points'::regclass, 'traces'::regclass, 'submissions'::regclass)
      AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = conrelid AND indkey[0] = conkey[1])
    """
    with database.session() as session:
        assert session.scalars(text(sql)).all() == []


def test_the_page_asks_for_the_name(client: TestClient, lab: Lab) -> None:
    assert 'action="/repositories/kernels/delete"' in client.get("/settings/repository?repository=kernels").text
    assert client.get("/repositories/kernels/delete").status_code == 200
    assert client.get("/repositories/nothing/delete").status_code == 404
    assert client.post("/repositories/kernels/delete", data={"typed": "kernel"}).status_code == 422
    assert len(client.get(f"{API}/repositories").json()["items"]) == 1
    answer = client.post("/repositories/kernels/delete", data={"typed": "kernels"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert client.get(f"{API}/repositories").json()["items"] == []


@pytest.fixture
def asked(served: Settings, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("WARPWATCH_URL", served.server_url)
    return CliRunner()


def test_the_commands(asked: CliRunner, database: Database, lab: Lab, tmp_path: Path) -> None:
    from warpwatch.cli.app import app

    job = str(lab.bench(0, {V1: 10_000.0}))
    assert asked.invoke(app, ["strike-out", "--job", job]).exit_code != 0
    assert asked.invoke(app, ["strike-out", "--job", job, "--reason", "hot"]).exit_code == 0
    assert asked.invoke(app, ["strike-out", "--job", job, "--undo"]).exit_code == 0
    with database.session() as session:
        registry.ensure_repository(session, "other", "/nowhere")
    assert asked.invoke(app, ["repository", "delete", "other"], input="othre\n").exit_code != 0
    assert asked.invoke(app, ["repository", "delete", "other"], input="other\n").exit_code == 0
    assert asked.invoke(app, ["repository", "delete", "kernels", "--yes"]).exit_code == 0
    assert asked.invoke(app, ["repository", "delete", "kernels", "--yes"]).exit_code != 0
