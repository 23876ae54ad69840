"""Backup and restore: the whole database in one file, by PostgreSQL's own programs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import closing, suppress
from pathlib import Path

import psycopg
from sqlalchemy import make_url, text

from warpwatch.db import embedded, migrate
from warpwatch.db.database import CONNECTION, Database, libpq_url
from warpwatch.db.errors import BackupError, EngineError

_SECONDS = 6 * 3600.0
_REPLACED = "warpwatch_replaced"
"""The schema of what a restore replaces, until it has ended well."""
_OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def back_up(url: str, file: Path) -> int:
    """Writes everything that the database at `url` holds into `file`, while it is used; returns the bytes of the file.

    BackupError names what is missing. A file that was there stays until the new one is whole.
    """
    partial = file.with_name(f"{file.name}.partial")
    try:
        _run(url, "pg_dump", "--format=custom", "--no-owner", f"--file={partial.absolute()}")
        partial.chmod(0o600)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return file.stat().st_size


def restore(url: str, file: Path, *, replace: bool = False) -> None:
    """Puts a backup into the database at `url`, and upgrades it to the schema of this version.

    BackupError where servers or workers use the database, or where it holds a repository and `replace` is not set.
    What the database held stays until the backup is restored.
    """
    if not file.is_file():
        raise BackupError(f"there is no file {file}")
    with closing(Database(url)) as database:
        with database.session() as session:
            if session.scalar(text(_OTHERS)):
                raise BackupError("the database is in use; stop servers and workers first")
            has_tables = session.scalar(text("SELECT to_regclass('public.repositories') IS NOT NULL"))
            if has_tables and not replace and session.scalar(text("SELECT EXISTS (SELECT FROM repositories)")):
                raise BackupError("the database holds repositories, which a restore replaces; allow it with --replace")
            session.execute(text(f"ALTER SCHEMA public RENAME TO {_REPLACED}"))
            session.execute(text("CREATE SCHEMA public"))
        try:
            options = ("--no-owner", "--exit-on-error", "--single-transaction", "--schema=public")
            _run(url, "pg_restore", *options, str(file.absolute()))
        except BaseException:
            _drop(database, "public", f"ALTER SCHEMA {_REPLACED} RENAME TO public")
            raise
        _drop(database, _REPLACED)
    migrate.upgrade(url)


def _drop(database: Database, schema: str, *more: str) -> None:
    with database.session() as session:
        for statement in (f"DROP SCHEMA {schema} CASCADE", *more):
            session.execute(text(statement))


def _run(url: str, program: str, *arguments: str) -> None:
    address = make_url(libpq_url(url))
    password = {"PGPASSWORD": str(address.password)} if address.password else {}
    done = subprocess.run(
        [
            str(_choose(url, program)),
            *arguments[:-1],
            # Without the password, which every user of the machine could read here.
            f"--dbname={address.set(password=None).render_as_string(hide_password=False)}",
            arguments[-1],
        ],
        env=os.environ | {"LC_ALL": "C"} | password,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise BackupError(f"{program} failed: {done.stderr.strip()[-1000:]}")


def _choose(url: str, program: str) -> Path:
    """The oldest installed program that is as new as the server: older ones refuse it, and newer ones write what it
    may not read."""
    with psycopg.connect(libpq_url(url), **CONNECTION) as connection:
        server = connection.info.server_version // 10_000
    system = shutil.which(program)
    candidates = [Path(system)] if system is not None else []
    with suppress(EngineError):
        candidates.append(embedded.find_program(program))
    versions = {path: _major_version(path) for path in candidates}
    fitting = [path for path, version in versions.items() if version >= server]
    if not fitting:
        raise BackupError(
            f"there is no {program} for PostgreSQL {server}; install that version's client programs, "
            "or pip install 'warpwatch[embedded]'"
        )
    return min(fitting, key=lambda path: versions[path])


def _major_version(program: Path) -> int:
    shown = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"(\d+)\.", shown)
    return int(match[1]) if match else 0
