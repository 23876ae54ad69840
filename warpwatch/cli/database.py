"""`warpwatch migrate`: upgrades the database schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from warpwatch.cli import app
from warpwatch.settings import SettingError, Settings, load_settings


@contextmanager
def database_url(settings: Settings) -> Iterator[str]:
    """URL of the configured database, or of the embedded server, which runs at least until the block ends."""
    from warpwatch.db import embedded

    if settings.database_url:
        yield settings.database_url
    else:
        with embedded.running(settings.home) as url:
            yield url


@app.command()
def migrate(
    check: bool = typer.Option(
        False, help="Change nothing; exit 1 if the migrations do not produce the schema of the code."
    ),
) -> None:
    """Upgrade the database to the schema of this version."""
    from warpwatch.db.errors import EngineError

    try:
        with database_url(load_settings()) as url:
            if check:
                _check(url)
            else:
                _upgrade(url)
    except (EngineError, SettingError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


def _upgrade(url: str) -> None:
    from warpwatch.db.migrate import pending, upgrade

    missing = pending(url)
    upgrade(url)
    typer.echo(f"applied {missing} migration{'s' * (missing != 1)}" if missing else "the database is up to date")


def _check(url: str) -> None:
    from warpwatch.db.migrate import differences

    lines = differences(url)
    if lines:
        typer.echo("the migrations (+) and db/models (-) differ:", err=True)
        typer.echo("\n".join(lines), err=True)
        raise typer.Exit(1)
    typer.echo("the migrations produce the schema of db/models")
