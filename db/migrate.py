"""Brings a database to the tables of db.models, forward only, and proves that the migrations and the models agree."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util.exc import CommandError
from psycopg import sql
from sqlalchemy import Connection, make_url, text

from warpwatch.db.database import CONNECTION, Database, libpq_url
from warpwatch.db.errors import SchemaTooNewError, SchemaTooOldError
from warpwatch.db.metadata import METADATA

_LOCK = 0x77617463
"""Advisory lock that keeps two processes from migrating one database at once."""
FIRST_REVISION = "0043"
"""The oldest schema that this version can upgrade, that of version 0.1."""

_CATALOGUE = """
    SELECT format('%s: column %s %s%s default %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
                  CASE WHEN a.attnotnull THEN ' not null' ELSE '' END, coalesce(pg_get_expr(d.adbin, d.adrelid),
                       'none'))
    FROM pg_attribute a
    JOIN pg_class c ON c.oid = a.attrelid AND c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attnum > 0 AND NOT a.attisdropped AND {ours}
    UNION ALL
    SELECT format('%s: constraint %s %s', c.relname, o.conname, pg_get_constraintdef(o.oid))
    FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid WHERE c.relnamespace = 'public'::regnamespace AND {ours}
    UNION ALL
    SELECT format('%s: index %s', c.relname, pg_get_indexdef(i.indexrelid))
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid WHERE c.relnamespace = 'public'::regnamespace AND {ours}
""".format(ours="c.relname <> 'alembic_version'")


def upgrade(url: str, revision: str = "head") -> None:
    """Applies every migration up to `revision` that is missing; safe to call from several processes at once."""
    with closing(Database(url)) as database, database.session() as session:
        connection = session.connection()
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        configuration = _configuration()
        configuration.attributes["connection"] = connection
        try:
            command.upgrade(configuration, revision)
        except (CommandError, RevisionError) as error:
            raise _unknown_revision(connection) from error


def pending(url: str) -> int:
    """How many migrations the database lacks; SchemaTooNewError or SchemaTooOldError when it has one that this
    version does not know."""
    with closing(Database(url)) as database:
        return count_pending(database)


def count_pending(database: Database) -> int:
    """As `pending`, on a connection that the caller has."""
    with database.session() as session:
        connection = session.connection()
        current = MigrationContext.configure(connection).get_current_revision()
        try:
            return len(list(_scripts().iterate_revisions("head", current or "base")))
        except (CommandError, RevisionError) as error:
            raise _unknown_revision(connection) from error


def differences(url: str) -> list[str]:
    """Lines that an upgraded empty database has (+) or lacks (-) against the models.

    Makes two scratch databases on the server of `url` and drops them again.
    """
    with scratch_database(url) as migrated, scratch_database(url) as modelled:
        upgrade(migrated)
        with closing(Database(modelled)) as database:
            METADATA.create_all(database.engine)
        have, want = _catalogue(migrated), _catalogue(modelled)
    return sorted(
        [f"+ {line}" for line in have - want] + [f"- {line}" for line in want - have], key=lambda line: line[2:]
    )


@contextmanager
def scratch_database(url: str) -> Iterator[str]:
    """The URL of a new, empty database on the server of `url`; dropped afterwards."""
    name = f"warpwatch_scratch_{secrets.token_hex(6)}"
    _administer(url, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield make_url(url).set(database=name).render_as_string(hide_password=False)
    finally:
        _administer(url, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _administer(url: str, statement: sql.Composed) -> None:
    with psycopg.connect(libpq_url(url), autocommit=True, **CONNECTION) as connection:
        connection.execute(statement)


def _catalogue(url: str) -> set[str]:
    with closing(Database(url)) as database, database.session() as session:
        return set(session.scalars(text(_CATALOGUE.replace(":", r"\:"))))


def _unknown_revision(connection: Connection) -> SchemaTooOldError | SchemaTooNewError:
    """The error for a database at a revision that this version has no migration for."""
    current = MigrationContext.configure(connection).get_current_revision() or ""
    return SchemaTooOldError() if current < FIRST_REVISION else SchemaTooNewError()


@cache
def _scripts() -> ScriptDirectory:
    """All migrations, which are read once: Alembic runs every file of them for that."""
    return ScriptDirectory.from_config(_configuration())


def _configuration() -> Config:
    configuration = Config()
    configuration.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return configuration
