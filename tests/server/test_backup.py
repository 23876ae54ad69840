"""A backup of the example data, restored into an empty home, gives every page the same JSON."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import text
from typer.testing import CliRunner

from tests.apps import create_app
from tests.conftest import FAST_AND_FORGETFUL
from warpwatch import git
from warpwatch.cli.app import app as command
from warpwatch.db import backup, embedded, migrate, registry
from warpwatch.db.backup import back_up, restore
from warpwatch.db.database import Database
from warpwatch.db.errors import BackupError
from warpwatch.server.intake.bundles import import_bundle
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings

EXAMPLE = Path(__file__).parents[2] / "docs" / "example"
ROWS, HISTORY, H100 = EXAMPLE / "rows.wwb", EXAMPLE / "rows.bundle", EXAMPLE / "h100.wwb"
OF_THE_MOMENT = {"/api/v1/audit", "/api/v1/health", "/api/v1/quality"}
"""The bytes of the database, periods that end now, and the requests of this test."""


@pytest.fixture
def empty_home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "empty"
    yield folder
    embedded.stop(folder)
    shutil.rmtree(embedded.data_folder(folder), ignore_errors=True)


def all_json(app: FastAPI) -> dict[str, Any]:
    """The JSON behind every page, with the parameters and the ids that the example has."""
    asked = {"repository": "example-rows", "state": "any", "limit": "200"}
    answers: dict[str, Any] = {}
    with TestClient(app, base_url="http://127.0.0.1:8321") as client:

        def read(path: str, **more: str) -> Any:
            names = [row["name"] for row in operations[path].get("parameters", []) if row["in"] == "query"]
            address = path.format(**more)
            query = {
                name: value
                for name, value in (asked | more).items()
                if name in names and (name != "state" or "regressions" in path)
            }
            answer = client.get(address, params=query)
            answers[f"{address}?{sorted(query.items())}"] = (answer.status_code, answer.content)
            return answer.json() if answer.headers.get("content-type") == "application/json" else None

        paths = client.get("/api/v1/openapi.json").json()["paths"]
        operations = {path: methods["get"] for path, methods in paths.items() if "get" in methods}
        devices = [row["key"] for row in read("/api/v1/devices")["items"]]
        series = set()
        for repository in [row["name"] for row in read("/api/v1/repositories")["items"]]:
            asked["repository"] = repository
            operators = [row["name"] for row in read("/api/v1/operators")["items"]]
            asked |= {"device": devices[0], "operator": operators[0]}
            for path in [path for path in operations if "{" not in path and path not in OF_THE_MOMENT]:
                read(path)
            commits = [row["sha"] for row in read("/api/v1/commits")["items"]]
            ids = {
                "sha": commits,
                "name": operators,
                "job_id": [str(row["id"]) for row in read("/api/v1/jobs")["items"]],
                "submission_id": [str(row["id"]) for row in read("/api/v1/submissions")["items"]],
                "regression_id": [str(row["id"]) for row in read("/api/v1/regressions")["items"]],
                "trace_id": [str(row["id"]) for row in read("/api/v1/traces")["items"]],
            }
            asked["metric"] = "hot"
            for device in devices:
                overview = read("/api/v1/overview", device=device) or {}
                series |= {str(cell["series_id"]) for cell in overview.get("cells", []) if cell.get("series_id")}
            ids["series_id"] = sorted(series)
            for path in operations:
                for name, values in ids.items():
                    if path.count("{") == 1 and f"{{{name}}}" in path and "/events" not in path:
                        for value in values[:1]:
                            read(path, **{name: value})
    return answers


@pytest.mark.nightly
def test_a_restored_backup_shows_the_same(
    settings: Settings, database: Database, empty_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git.update_mirror(str(HISTORY), settings.home)
    import_bundle(database, ROWS, "example-rows", "example", str(HISTORY))
    import_bundle(database, H100, "example-h100", "example")
    Judge(settings, database).sweep()
    before = all_json(create_app(settings, database, judge=False))

    runner, file = CliRunner(), tmp_path / "all.dump"
    monkeypatch.setenv("WARPWATCH_DATABASE_URL", database.url)
    assert runner.invoke(command, ["backup", str(file)]).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    monkeypatch.delenv("WARPWATCH_DATABASE_URL")
    monkeypatch.setenv("WARPWATCH_HOME", str(empty_home))
    with embedded.running(empty_home, options=FAST_AND_FORGETFUL) as url:
        result = runner.invoke(command, ["restore", str(file)])
        assert result.exit_code == 0, result.output
        # Neither mirrors nor the key of receipts are in the database.
        for folder in ("mirrors", "judgements"):
            shutil.copytree(settings.home / folder, empty_home / folder)
        restored = Database(url)
        after = all_json(create_app(Settings(home=empty_home, database_url=url), restored, judge=False))
        restored.close()
    assert len(before) > 100
    assert {status for status, _ in before.values()} >= {200}
    assert sum(status == 200 for status, _ in before.values()) > 80
    assert [address for address, answer in before.items() if after.get(address) != answer] == []


def test_data_is_not_replaced_by_mistake(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with migrate.scratch_database(postgres_url) as url:
        migrate.upgrade(url)
        database = Database(url)
        file = tmp_path / "mine.dump"

        def names() -> list[str]:
            with database.session() as session:
                rows = list(session.scalars(text("SELECT name FROM repositories ORDER BY name")))
            database.close()
            return rows

        with database.session() as session:
            registry.ensure_repository(session, "mine", "/mine")
        with pytest.raises(BackupError):
            restore(url, tmp_path / "nothing.dump")
        back_up(url, file)
        with database.session() as session:
            session.execute(text("SELECT 1"))
            with pytest.raises(BackupError):
                restore(url, file, replace=True)
        with database.session() as session:
            registry.ensure_repository(session, "yours", "/yours")
        database.close()
        with pytest.raises(BackupError):
            restore(url, file)
        (tmp_path / "half.dump").write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        with pytest.raises(BackupError):
            restore(url, tmp_path / "half.dump", replace=True)
        assert names() == ["mine", "yours"], "a restore that fails changes nothing"
        restore(url, file, replace=True)
        assert names() == ["mine"]
        monkeypatch.setattr(backup, "_major_version", lambda path: 9)
        with pytest.raises(BackupError):
            back_up(url, file)
        assert file.exists()
