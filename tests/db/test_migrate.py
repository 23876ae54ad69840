"""Migrations lead from nothing to the models, and say how far behind a database is."""

from __future__ import annotations

import gzip
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from warpwatch.db import backup, migrate, runs
from warpwatch.db.database import Database
from warpwatch.db.errors import SchemaOutdatedError, SchemaTooNewError, SchemaTooOldError
from warpwatch.db.metadata import METADATA
from warpwatch.db.models import RepositoryRecord

ROOT = Path(__file__).parents[2]
VERSION_0_1 = Path(__file__).parent / "version_0_1.backup.gz"
"""What `warpwatch backup` of version 0.1 wrote, compressed."""


@pytest.fixture
def empty_url(postgres_url: str) -> Iterator[str]:
    with migrate.scratch_database(postgres_url) as url:
        yield url


@pytest.fixture
def own_url(empty_url: str) -> str:
    """A migrated database whose tables a test may spoil."""
    migrate.upgrade(empty_url)
    return empty_url


def execute(url: str, *statements: str) -> None:
    database = Database(url)
    with database.session() as s:
        for statement in statements:
            s.execute(text(statement))
    database.close()


def load_version_0_1(url: str) -> None:
    """Fills an empty database with the backup, and leaves it at its revision."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(migrate, "upgrade", lambda _url: None)
        file = Path(folder) / "backup"
        file.write_bytes(gzip.decompress(VERSION_0_1.read_bytes()))
        backup.restore(url, file)


def rows_of(url: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of every table but Alembic's."""
    database = Database(url)
    with database.session() as s:
        tables = s.scalars(
            text("SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'")
        ).all()
        rows = {
            table: [dict(row) for row in s.execute(text(f"SELECT * FROM {table} ORDER BY 1")).mappings()]
            for table in tables
        }
    database.close()
    return rows


def test_migrations_lead_to_the_models(postgres_url: str) -> None:
    assert migrate.differences(postgres_url) == []


def test_every_kind_of_difference_is_seen(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def upgrade_and_spoil(url: str) -> None:
        upgrade(url)
        execute(
            url,
            "ALTER TABLE jobs ALTER COLUMN message DROP NOT NULL",
            "ALTER TABLE regressions ALTER COLUMN ratio TYPE real",
            "ALTER TABLE runs DROP CONSTRAINT ck_runs_state_known",
            "DROP INDEX ix_all_points_commit_id",
            "ALTER TABLE commits ADD COLUMN mood text",
            "ALTER TABLE submissions ALTER COLUMN origin SET DEFAULT 'cli'",
        )

    upgrade = migrate.upgrade
    monkeypatch.setattr(migrate, "upgrade", upgrade_and_spoil)
    found = "\n".join(migrate.differences(postgres_url))
    for trace in ("+ jobs: column message", "- regressions: column ratio", "- runs: constraint ck_runs_state_known"):
        assert trace in found
    for trace in (
        "- all_points: index CREATE INDEX ix_all_points_commit_id",
        "+ commits: column mood text",
        "- submissions: column origin",
    ):
        assert trace in found


def test_a_database_knows_how_far_behind_it_is(empty_url: str) -> None:
    assert migrate.pending(empty_url) >= 1
    migrate.upgrade(empty_url)
    assert migrate.pending(empty_url) == 0


def test_migrating_again_keeps_everything(own_url: str) -> None:
    execute(own_url, "INSERT INTO repositories (name, url) VALUES ('kept', '/kept')")
    migrate.upgrade(own_url)
    database = Database(own_url)
    with database.session() as s:
        assert s.query(RepositoryRecord.name).all() == [("kept",)]
    database.close()


def test_a_backup_of_version_0_1_is_restored_and_upgraded(own_url: str, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    file.write_bytes(gzip.decompress(VERSION_0_1.read_bytes()))
    backup.restore(own_url, file)
    assert migrate.pending(own_url) == 0
    rows = rows_of(own_url)
    assert [row["median_ns"] for row in rows["all_points"]] == [1234.5, 1234.5]
    assert [row["name"] for row in rows["worker_keys"]] == ["cluster-a"]


def test_a_database_of_version_0_1_keeps_its_rows_and_loses_the_old_queue(empty_url: str) -> None:
    """The backup was made at version 0.1, with a job that was done, one that ran and one that waited."""
    load_version_0_1(empty_url)
    assert migrate.pending(empty_url) == len(list((ROOT / "db" / "migrations" / "versions").glob("0*.py"))) - 1
    before = rows_of(empty_url)
    migrate.upgrade(empty_url)
    after = rows_of(empty_url)
    assert {table for table in before if table.startswith("procrastinate")} == set(before) - set(after)
    assert set(after) - set(before) == {
        "awaited_files",
        "environment_changes",
        "environment_steps",
        "judgements",
        "sealed_jobs",
        "trades",
    }
    for table, rows in after.items():
        if table not in before:
            assert rows == []
            continue
        old = [{name: value for name, value in row.items() if name != "ticket"} for row in before[table]]
        # Columns that are new are empty.
        kept = [{name: value for name, value in row.items() if name in old[0]} for row in rows]
        assert old == kept, table
        assert not any(value for row in rows for name, value in row.items() if name not in old[0]), table
    assert [(row["kind"], row["state"]) for row in after["jobs"]] == [
        ("bench", "done"),
        ("check", "running"),
        ("profile", "queued"),
    ]
    database = Database(empty_url)
    with database.session() as s:
        rest = "SELECT proname::text FROM pg_proc WHERE proname LIKE '%procrastinate%' UNION ALL "
        rest += "SELECT typname::text FROM pg_type WHERE typname LIKE '%procrastinate%'"
        assert s.scalars(text(rest)).all() == []
        device = s.scalars(text("SELECT id FROM devices")).one()
        worker = s.scalars(text("SELECT id FROM workers")).one()
        claimed = runs.claim_next(s, device, worker)
    database.close()
    assert claimed is not None
    assert claimed.request.kind == "profile"


def test_a_new_database_and_one_of_version_0_1_end_alike(empty_url: str, postgres_url: str) -> None:
    load_version_0_1(empty_url)
    migrate.upgrade(empty_url)
    with migrate.scratch_database(postgres_url) as new_url:
        migrate.upgrade(new_url)
        assert migrate._catalogue(empty_url) == migrate._catalogue(new_url)


def test_a_database_of_an_older_version_names_the_version_between(empty_url: str) -> None:
    load_version_0_1(empty_url)
    execute(empty_url, "UPDATE alembic_version SET version_num = '0042'")
    for act in (migrate.upgrade, migrate.pending):
        with pytest.raises(SchemaTooOldError, match=r"install Warpwatch 0\.1"):
            act(empty_url)


def test_several_processes_may_migrate_at_once(empty_url: str) -> None:
    errors: list[Exception] = []

    def upgrade() -> None:
        try:
            migrate.upgrade(empty_url)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=upgrade) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert migrate.pending(empty_url) == 0


def test_a_database_from_the_future_is_left_alone(own_url: str) -> None:
    execute(own_url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaTooNewError, match="newer version"):
        migrate.pending(own_url)
    with pytest.raises(SchemaTooNewError, match="newer version"):
        migrate.upgrade(own_url)


def test_a_query_without_its_table_names_the_remedy(empty_url: str) -> None:
    database = Database(empty_url)
    with pytest.raises(SchemaOutdatedError, match="run `warpwatch migrate`"), database.session() as s:
        s.query(RepositoryRecord).all()
    database.close()


def test_every_foreign_key_in_a_hot_path_has_its_index() -> None:
    leading = {
        (name, column.name)
        for name, table in METADATA.tables.items()
        for column in [
            *(column for index in table.indexes for column in list(index.columns)[:1]),
            next(iter(table.primary_key.columns)),
        ]
    }
    for table, column in [
        ("runs", "worker_id"),
        ("all_points", "commit_id"),
        ("traces", "result_id"),
        ("run_logs", "run_id"),
    ]:
        assert (table, column) in leading


def test_the_command_migrates_checks_and_complains(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from warpwatch.cli.app import app

    monkeypatch.setenv("WARPWATCH_DATABASE_URL", empty_url)
    runner = CliRunner()

    def run(*arguments: str) -> tuple[int, str]:
        result = runner.invoke(app, ["migrate", *arguments])
        return result.exit_code, result.output.strip()

    assert run("--check") == (0, "the migrations produce the schema of db/models")
    assert run()[1].startswith("applied ")
    assert run() == (0, "the database is up to date")
    monkeypatch.setattr(migrate, "differences", lambda url: ["+ jobs: column mood text"])
    code, output = run("--check")
    assert code == 1
    assert "+ jobs: column mood text" in output
    monkeypatch.setenv("WARPWATCH_DATABASE_URL", "postgresql://127.0.0.1:1/x")
    code, output = run()
    assert code == 2
    assert "cannot reach PostgreSQL" in output
