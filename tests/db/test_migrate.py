"""Migrations lead from nothing to the models, and say how far behind a database is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from procrastinate.schema import SchemaManager
from sqlalchemy import text
from typer.testing import CliRunner

from warpwatch.db import migrate
from warpwatch.db.database import Database
from warpwatch.db.errors import SchemaOutdatedError, SchemaTooNewError
from warpwatch.db.models import Base, RepositoryRecord


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
    with pytest.raises(SchemaOutdatedError, match="behind; run `warpwatch migrate`"):
        migrate.require_current(empty_url)
    migrate.upgrade(empty_url)
    assert migrate.pending(empty_url) == 0
    migrate.require_current(empty_url)


def test_migrating_again_keeps_everything(own_url: str) -> None:
    execute(own_url, "INSERT INTO repositories (name, url) VALUES ('kept', '/kept')")
    migrate.upgrade(own_url)
    database = Database(own_url)
    with database.session() as s:
        assert s.query(RepositoryRecord.name).all() == [("kept",)]
    database.close()


MEASURED = "a" * 40
SENTENCES = (
    ("check", "done", f"not measured: its sources are those of {MEASURED}", ("unchanged", 1)),
    ("check", "done", f"not measured: its sources are those of {'f' * 40}", ("unchanged", None)),
    ("check", "failed", f"not measured: its sources are those of {MEASURED}", (None, None)),
    ("bench", "queued", "cuda:0 is not fit to be measured on: it is 91 °C hot", ("unfit_device", None)),
    ("bench", "failed", "cuda:0 is not fit to be measured on: it is 91 °C hot", ("unfit_device", None)),
    ("compare", "failed", "the two commits ask for different interpreters, so", ("interpreter_mismatch", None)),
    ("bench", "failed", "the two commits ask for different interpreters, so", (None, None)),
    ("bench", "failed", "no compiler", (None, None)),
    ("bench", "done", "", (None, None)),
)
"""Kind, state and message of jobs at revision 0005; reason and commit of which they are unchanged since."""


def test_reasons_are_read_from_the_sentences_of_the_revision_before(empty_url: str) -> None:
    migrate.upgrade(empty_url, "0005")
    ids = "(id, submission_id, kind, commit_id, operator_id, device_id, spec, state, message)"
    execute(
        empty_url,
        "INSERT INTO repositories (name, url) VALUES ('mine', ''), ('example-h100', ''), ('examples-of-ours', '')",
        "INSERT INTO commits (repository_id, sha, ordinal, author, authored_at, subject) "
        f"VALUES (1, '{MEASURED}', 1, '', now(), ''), (1, '{'b' * 40}', 2, '', now(), '')",
        "INSERT INTO operators (repository_id, name) VALUES (1, 'kron')",
        "INSERT INTO variants (operator_id, name) VALUES (1, 'v1')",
        "INSERT INTO cases (operator_id, key, sizes, precision, direction, layout, suites, flops, bytes) "
        "VALUES (1, 'n=1', '{}', '', '', '', '[]', 1, 1), (1, 'n=2', '{}', '', '', '', '[]', 1, 1)",
        "INSERT INTO devices (key, kind, name) VALUES ('gpu', 'cuda', '')",
        "INSERT INTO series (operator_id, case_id, variant_id, device_id, protocol, metric) "
        "VALUES (1, 1, 1, 1, '1', 'hot'), (1, 2, 1, 1, '1', 'hot')",
        "INSERT INTO submissions (repository_id, request, origin) "
        "VALUES (1, '{}', 'api'), (2, '{}', 'example'), (3, '{}', 'form')",
        *(
            f"INSERT INTO jobs {ids} VALUES ({number}, 1, '{kind}', 2, 1, 1, '{{}}', '{state}', '{message}')"
            for number, (kind, state, message, _) in enumerate(SENTENCES, 1)
        ),
        "INSERT INTO runs (job_id, attempt, state, message) SELECT id, 1, 'failed', message FROM jobs",
        *(
            "INSERT INTO comparisons "
            "(run_id, series_id, base_commit_id, head_commit_id, status, message, base_ns, head_ns) "
            f"VALUES (1, {number}, 1, 2, 'crashed', '{message}', '[]', '[]')"
            for number, message in enumerate(("base: it fell over", "head: it fell over"), 1)
        ),
    )
    migrate.upgrade(empty_url)
    database = Database(empty_url)
    with database.session() as s:
        jobs = s.execute(text("SELECT reason, unchanged_since_commit_id FROM jobs ORDER BY id")).all()
        runs = s.scalars(text("SELECT reason FROM runs ORDER BY job_id")).all()
        comparisons = s.scalars(text("SELECT reason FROM comparisons ORDER BY id")).all()
        examples = s.scalars(text("SELECT name FROM repositories WHERE is_example")).all()
    database.close()
    assert [tuple(row) for row in jobs] == [columns for *_, columns in SENTENCES]
    assert runs == [None, None, None, "unfit_device", "unfit_device", "interpreter_mismatch", None, None, None]
    assert comparisons == ["base_failed", None]
    assert examples == ["example-h100"]


def test_holders_of_tokens_get_accounts(empty_url: str) -> None:
    """Each with the role of the strongest token that is still valid."""
    migrate.upgrade(empty_url, "0037")
    execute(
        empty_url,
        "INSERT INTO access_tokens (person, token_hash, scope, revoked_at) VALUES ('ann', '1', 'read', NULL), "
        "('ann', '2', 'triage', NULL), ('ann', '3', 'administer', now()), ('bob', '4', 'administer', now())",
    )
    migrate.upgrade(empty_url)
    database = Database(empty_url)
    with database.session() as s:
        roles = s.execute(text("SELECT name, role FROM accounts ORDER BY name")).all()
        owners = s.scalars(text("SELECT count(*) FROM access_tokens JOIN accounts a ON a.id = account_id")).one()
    database.close()
    assert ([tuple(row) for row in roles], owners) == ([("ann", "triager"), ("bob", "viewer")], 4)


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


def test_the_queue_has_the_schema_of_the_pinned_procrastinate() -> None:
    frozen = Path(migrate.__file__).parent / "migrations" / "procrastinate_3_10.sql"
    assert frozen.read_text().partition("\n\n")[2] == SchemaManager.get_schema()


def test_every_foreign_key_in_a_hot_path_has_its_index() -> None:
    leading = {
        (name, column.name)
        for name, table in Base.metadata.tables.items()
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
    from warpwatch.cli import app

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
