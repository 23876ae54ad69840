"""What the tests of several areas share: a real PostgreSQL, and an empty, migrated database for each test."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import costs, rewording
from warpwatch.worker import templates
from warpwatch.worker.sandbox import KEEP_FREED_MEMORY, SHORT_SPIN

if TYPE_CHECKING:
    import psycopg

    from warpwatch.db.database import Database

FAST_AND_FORGETFUL = ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
"""The data of a test need not outlive a power cut."""

# As in every child of a worker: threads that spin long while they wait for each other make tests beside any other
# program crawl, and memory given back and taken again makes them slow at random.
for name, value in (SHORT_SPIN | KEEP_FREED_MEMORY).items():
    os.environ.setdefault(name, value)

_SHARED = "shared by tests"
"""The application name of connections that outlive a test."""
_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> %s"
)
_TABLES = (
    "SELECT relname FROM pg_class "
    "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'"
)
_SEQUENCES = (
    "SELECT setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "Replace every message by another text, to show that nothing is decided by words (tests/rewording.py)."
    parser.addoption("--reword", action="store_true", help=help_text)
    help_text = "Make up so many times the requests that tests send to each operation of the API, other ones each time."
    parser.addoption("--requests", type=int, default=1, help=help_text)
    help_text = "Put the torch operators of kernels through opcheck for every precision, layout and size of 0 or 1."
    parser.addoption("--opcheck-all", action="store_true", help=help_text)
    help_text = (
        "With -n, give each process a CPU of its own, because children that measure take the first CPU they may."
    )
    parser.addoption("--own-cpu", action="store_true", help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    rewording.Switch.is_on = config.getoption("--reword")
    if config.getoption("--own-cpu") and hasattr(config, "workerinput"):
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[int(config.workerinput["workerid"].removeprefix("gw")) % len(cpus)]})
    config.pluginmanager.register(costs.FileCosts())
    # What is imported while tests are collected stays, and looking for garbage in it takes a tenth of the time.
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()
    # A collection after every 700 new objects takes a twentieth of the time of the server's tests.
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests with a browser come last: from the first of them on an event loop runs in this thread, and no test may run
    its own."""
    if config.getoption("--reword"):
        for item in items:
            if item.get_closest_marker("words"):
                item.add_marker(pytest.mark.skip(reason="it is about the words of a message"))
    items.sort(key=lambda item: bool({"page", "browser"} & set(getattr(item, "fixturenames", ()))))


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an embedded PostgreSQL that runs as long as the tests do."""
    from warpwatch.db import embedded

    home: Path = tmp_path_factory.mktemp("postgres")
    with embedded.running(home, options=FAST_AND_FORGETFUL) as url:
        yield url
    shutil.rmtree(embedded.data_folder(home), ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _reworded_contract(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --reword, the contract's findings and comparisons carry other messages."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--reword"):
            rewording.reword_contract(patch)
        yield


@pytest.fixture(scope="module", autouse=True)
def _shared_templates() -> Iterator[None]:
    """The children of all files come from one template as far as possible: each takes seconds to import torch, and
    longer once a child of an earlier file has used torch's compilers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "CHILDREN", 1000)
        patch.setattr(templates, "_compilers", templates._Compilers())
        yield


@pytest.fixture(scope="session")
def migrated_url(postgres_url: str, request: pytest.FixtureRequest) -> str:
    """The URL of a migrated database that all tests share; use `database_url`, which empties it."""
    from warpwatch.db import migrate

    migrate.upgrade(postgres_url)
    if request.config.getoption("--reword"):
        rewording.reword_database(postgres_url)
    return postgres_url


@pytest.fixture(scope="session")
def shared_database(migrated_url: str) -> Iterator[Database]:
    """The connections of all tests: a new pool compiles every statement anew, and its connections read PostgreSQL's
    catalogue anew, which takes longer than most tests."""
    from sqlalchemy import event

    from warpwatch.db.database import Database

    database = Database(migrated_url)

    def name(connection: psycopg.Connection[Any], _record: object) -> None:
        connection.execute("SELECT set_config('application_name', %s, false)", [_SHARED])
        connection.commit()

    event.listen(database.engine, "connect", name)
    yield database
    database.close()


@pytest.fixture
def database_url(shared_database: Database) -> str:
    """The URL of a migrated database without a row, whose ids start at 1. Do not change its tables' shape.

    A file whose tests read what one fixture wrote has a `database_url` of scope "module", which calls `emptied`.
    """
    return emptied(shared_database)


def emptied(shared_database: Database) -> str:
    """The URL of the database, whose rows are gone."""
    # A connection in use belongs to a thread that outlived its test, and ends with those of other pools.
    is_idle = shared_database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    if not is_idle:
        shared_database.close()
    # A fresh copy would take half a second per test; this takes milliseconds.
    with shared_database.engine.begin() as connection:
        connection.exec_driver_sql(_OTHERS, (_SHARED if is_idle else "",))
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        tables = connection.exec_driver_sql(_TABLES).scalars().all()
        filled = " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in tables)
        for name in connection.exec_driver_sql(filled).scalars().all():
            connection.exec_driver_sql(f"DELETE FROM {name}")
        connection.exec_driver_sql(_SEQUENCES)
    return shared_database.url


@pytest.fixture
def database(shared_database: Database, database_url: str) -> Database:
    """A db.database.Database on a migrated database without a row."""
    return shared_database
