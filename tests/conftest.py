"""What the tests of several areas share: a real PostgreSQL, and a fresh migrated database for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

FAST_AND_FORGETFUL = ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
"""The data of a test need not outlive a power cut."""


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an embedded PostgreSQL that runs as long as the tests do."""
    from db import embedded

    home: Path = tmp_path_factory.mktemp("postgres")
    with embedded.running(home, options=FAST_AND_FORGETFUL) as url:
        yield url
    shutil.rmtree(embedded.data_folder(home), ignore_errors=True)


@pytest.fixture(scope="session")
def migrated_template(postgres_url: str) -> Iterator[str]:
    """The name of a migrated, empty database to copy."""
    from sqlalchemy import make_url

    from db import migrate

    with migrate.scratch_database(postgres_url) as url:
        migrate.upgrade(url)
        name = make_url(url).database
        assert name is not None
        yield name


@pytest.fixture
def database_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """The URL of a fresh, migrated database."""
    from db import migrate

    with migrate.scratch_database(postgres_url, template=migrated_template) as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[object]:
    """A db.database.Database on a fresh, migrated database."""
    from db.database import Database

    opened = Database(database_url)
    yield opened
    opened.close()
