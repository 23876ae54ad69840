"""Sessions that wait for others: bounded, with an error that says so."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import text

from warpwatch.db.database import CONNECTION, Database
from warpwatch.db.errors import DatabaseBusyError, DatabaseDownError
from warpwatch.db.registry import ensure_repository


def test_a_session_does_not_wait_for_a_lock_without_end(database_url: str) -> None:
    patient, hasty = Database(database_url), Database(database_url, lock_timeout_seconds=0.2)
    with patient.session() as s:
        ensure_repository(s, "kernels", "/kernels")
    with patient.session() as holder:
        holder.execute(text("SELECT FROM repositories FOR UPDATE"))
        with pytest.raises(DatabaseBusyError, match="try again"), hasty.session() as s:
            s.execute(text("SELECT FROM repositories FOR UPDATE"))
    with hasty.session() as s:
        assert s.execute(text("SELECT count(*) FROM repositories")).scalar_one() == 1, "the connection is usable again"
    patient.close()
    hasty.close()


def test_a_busy_database_is_waited_for_like_one_that_is_down() -> None:
    assert issubclass(DatabaseBusyError, DatabaseDownError)


@pytest.mark.parametrize(
    ("setting", "least"),
    [
        ("lock_timeout", "15s"),
        ("statement_timeout", "2min"),
        ("idle_in_transaction_session_timeout", "5min"),
        ("jit", "off"),
    ],
)
def test_every_session_is_bounded(database: Database, setting: str, least: str) -> None:
    with database.session() as s:
        assert s.execute(text("SELECT current_setting(:name)"), {"name": setting}).scalar_one() == least


def test_a_peer_that_vanished_is_noticed(database: Database) -> None:
    with database.session() as s:
        driver = s.connection().connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        options = driver.info.get_parameters()
    assert {name: options[name] for name in CONNECTION} == {name: str(value) for name, value in CONNECTION.items()}
