"""`warpwatch backup` and `warpwatch restore`: everything that the database holds, in one file."""

from __future__ import annotations

from pathlib import Path

import typer

from warpwatch.cli import app
from warpwatch.settings import SettingError, load_settings


@app.command()
def backup(file: Path = typer.Argument(..., help="File to write; one of that name is replaced.")) -> None:
    """Write repositories, results, traces and settings into a file, also while servers and workers run.

    The file holds secrets of webhooks and commit statuses; only its owner may read it.
    """
    from warpwatch.cli.database import database_url
    from warpwatch.db.backup import back_up
    from warpwatch.db.errors import EngineError

    try:
        with database_url(load_settings()) as url:
            size = back_up(url, file)
    except (EngineError, SettingError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{file}: {size / 1e6:.1f} MB")


@app.command()
def restore(
    file: Path = typer.Argument(..., help="File of `warpwatch backup`, of this version or an older one."),
    replace: bool = typer.Option(False, "--replace", help="Replace what the database holds."),
) -> None:
    """Put a backup into the database, and upgrade it to the schema of this version.

    Stop servers and workers first. Mirrors and builds are made again when they are needed.
    """
    from warpwatch.cli.database import database_url
    from warpwatch.db import backup as backups
    from warpwatch.db.errors import EngineError

    try:
        with database_url(load_settings()) as url:
            backups.restore(url, file, replace=replace)
    except (EngineError, SettingError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{file} is restored")
