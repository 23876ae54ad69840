"""Connections: one pool per process, one transaction per session, clear errors."""

from __future__ import annotations

import importlib
import json
import logging
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

from warpwatch.db.errors import (
    DatabaseBusyError,
    DatabaseDownError,
    DatabaseFullError,
    EngineError,
    SchemaOutdatedError,
    UnusableValueError,
)

CONNECTION: dict[str, Any] = {
    # A host whose cores all compile takes seconds to answer.
    "connect_timeout": 15,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
"""Options of every connection: a peer that vanishes silently is noticed within 30 s instead of TCP's two hours."""
LOCK_TIMEOUT_SECONDS = 15.0
"""How long a statement of a session waits for a lock before DatabaseBusyError."""
STATEMENT_TIMEOUT_SECONDS = 120.0
"""How long one statement of a session may take before DatabaseBusyError."""
CHANNEL = "warpwatch"
_TRUSTED_SECONDS = 1.0
_USED_AT = "warpwatch_used_at"
ANNOUNCEMENTS = "announcements"
"""Where a session keeps what it announces when it has committed; see db.live."""
_log = logging.getLogger(__name__)
IDLE_TIMEOUT_SECONDS = 300.0
"""How long a transaction may stay open between two statements before PostgreSQL ends it and frees its locks."""
_STATES_OF_A_SERVER_THAT_GOES_OR_COMES = ("57P01", "57P02", "57P03", "53300")


_SUSPICIOUS_ESCAPE = re.compile(r"\\u(?:0000|d[89a-f])", re.IGNORECASE)


class Database:
    """A pool of connections to the PostgreSQL at `url`."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 5,
        max_overflow: int | None = None,
        lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    ) -> None:
        """pool_size: connections that stay open.

        max_overflow: further ones, each open for one transaction; as many as pool_size by default.
        """
        # Tables refer to each other by name, so all must be known before the first statement; modules of tables import
        # this one.
        importlib.import_module("warpwatch.db.metadata")
        self.url = url
        self._lock_timeout_seconds = lock_timeout_seconds
        self.engine = create_engine(
            make_url(url).set(drivername="postgresql+psycopg"),
            pool_size=pool_size,
            max_overflow=pool_size if max_overflow is None else max_overflow,
            json_serializer=dumps,
            connect_args=CONNECTION,
        )
        event.listen(self.engine, "connect", self._limit)
        event.listen(self.engine, "checkin", _note_use)
        event.listen(self.engine, "checkout", self._try_before_use)
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)
        self._single = sessionmaker(self.engine.execution_options(isolation_level="AUTOCOMMIT"), expire_on_commit=False)

    @contextmanager
    def session(self, *, single: bool = False) -> Iterator[Session]:
        """One transaction: committed when the block ends, rolled back when it raises.

        single: the block has one statement that writes, so it needs no BEGIN and COMMIT, two thirds of the round trips.
        DatabaseDownError, DatabaseBusyError, DatabaseFullError, SchemaOutdatedError and UnusableValueError stand for
        the driver's errors.
        """
        try:
            with (self._single if single else self._sessions).begin() as session:
                yield session
            self._notify(session.info.get(ANNOUNCEMENTS, []))
        except (DBAPIError, psycopg.Error, PoolTimeoutError) as error:
            translated = translate(error, self.url)
            if translated is None:
                raise
            raise translated from error

    def _try_before_use(self, connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        """Replaces a connection that an outage ended, so that it fails no request.

        One that was used a moment ago is not tried: a try takes as long as the statement that follows.
        """
        if time.monotonic() - record.info.get(_USED_AT, 0.0) < _TRUSTED_SECONDS:
            return
        try:
            self.engine.dialect.do_ping(connection)
        except psycopg.OperationalError as error:
            raise DisconnectionError from error

    def _notify(self, payloads: list[str]) -> None:
        """Sends what a committed transaction announced.

        PostgreSQL lets one transaction with a NOTIFY commit at a time, and waits for the disk meanwhile. A transaction
        that only notifies writes nothing, so a hundred workers do not wait for one another.
        """
        if not payloads:
            return
        statement = text("SELECT pg_notify(:channel, payload) FROM unnest(CAST(:payloads AS text[])) AS payload")
        try:
            with self._single() as session:
                session.execute(statement, {"channel": CHANNEL, "payloads": list(dict.fromkeys(payloads))})
        except (DBAPIError, PoolTimeoutError) as error:
            # The change itself is committed. Whoever listens reads everything anew after an outage.
            _log.warning("a change was not announced: %s", error)

    def close(self) -> None:
        """Gives all connections back."""
        self.engine.dispose()

    def _limit(self, connection: psycopg.Connection[Any], _record: object) -> None:
        """Bounds what one session can make others wait for."""
        # Not as options of the connection, which poolers such as PgBouncer reject.
        limits = {
            "lock_timeout": self._lock_timeout_seconds,
            "statement_timeout": STATEMENT_TIMEOUT_SECONDS,
            "idle_in_transaction_session_timeout": IDLE_TIMEOUT_SECONDS,
        }
        settings = ", ".join("set_config(%s, %s, false)" for _ in limits)
        values = [value for name, seconds in limits.items() for value in (name, f"{seconds * 1000:.0f}ms")]
        # Compiling a plan of ours takes longer than running it: 0.4 s for a page.
        connection.execute(f"SELECT {settings}, set_config('jit', 'off', false)", values)
        connection.commit()


def _note_use(_connection: object, record: ConnectionPoolEntry) -> None:
    record.info[_USED_AT] = time.monotonic()


def storable(words: str) -> str:
    """`words` as PostgreSQL can hold them: programs print NUL bytes and broken UTF-8, which it cannot."""
    return words.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def dumps(value: Any) -> str:
    """JSON as PostgreSQL can hold it: numbers that are not finite become "NaN", "Infinity" and "-Infinity", which
    float() reads."""
    try:
        encoded = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(_plain(value), allow_nan=False)
    # Escapes of NUL and of surrogates, which are pairs in good text too.
    return json.dumps(_plain(value), allow_nan=False) if _SUSPICIOUS_ESCAPE.search(encoded) else encoded


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def libpq_url(url: str) -> str:
    """`url` for psycopg: without the driver's name."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def shown_url(url: str) -> str:
    """`url` for people: without the password."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=True)


def translate(error: Exception, url: str) -> EngineError | UnusableValueError | None:
    """The error of ours that stands for what the driver said; None when it is neither the server's health nor a value
    given."""
    if isinstance(error, PoolTimeoutError):
        return DatabaseDownError(
            f"no connection to PostgreSQL at {shown_url(url)} became free in time; it is overloaded or hangs"
        )
    driver_error = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(driver_error, "sqlstate", None)
    if isinstance(driver_error, psycopg.errors.DiskFull):
        return DatabaseFullError()
    if isinstance(
        driver_error,
        psycopg.errors.LockNotAvailable | psycopg.errors.QueryCanceled | psycopg.errors.IdleInTransactionSessionTimeout,
    ):
        return DatabaseBusyError()
    if isinstance(driver_error, psycopg.DataError):
        return UnusableValueError((str(driver_error).strip().splitlines() or ["a value cannot be used"])[0])
    if isinstance(
        driver_error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn | psycopg.errors.UndefinedObject
    ):
        return SchemaOutdatedError()
    if isinstance(driver_error, psycopg.OperationalError) and (
        state is None or state in _STATES_OF_A_SERVER_THAT_GOES_OR_COMES or state.startswith("08")
    ):
        first_line = (str(driver_error).strip().splitlines() or [type(driver_error).__name__])[0]
        return DatabaseDownError(
            f"cannot reach PostgreSQL at {shown_url(url)} ({first_line}); "
            "start it, or set WARPWATCH_DATABASE_URL to one that runs"
        )
    return None
