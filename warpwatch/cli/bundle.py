"""`warpwatch import`: brings in what a machine without a server measured."""

from __future__ import annotations

from pathlib import Path

import typer

from warpwatch.cli import app
from warpwatch.settings import SettingError, Settings, load_settings


@app.command("import")
def import_files(
    files: list[Path] = typer.Argument(help="Results files (.wwb) written by `warpwatch run`."),
    repository: str | None = typer.Option(
        None, help="Name of the repository to record them under, instead of their own."
    ),
) -> None:
    """Bring results files in; each as a whole or not at all, and a second time changes nothing."""
    from warpwatch.cli.database import database_url
    from warpwatch.db.errors import EngineError
    from warpwatch.worker.bundle import BundleError

    settings, failed = _settings(), False
    try:
        with database_url(settings) as url:
            for file in files:
                try:
                    _import_and_tell(url, file, repository)
                except BundleError as error:
                    failed = True
                    typer.echo(str(error), err=True)
    except EngineError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if failed:
        raise typer.Exit(2)


def import_file(
    database_url: str, path: Path, repository: str | None = None, origin: str = "bundle", url: str | None = None
) -> bool:
    """Imports one results file; False when it had been imported before. url: where its repository is here.

    BundleError, EngineError: nothing was written.
    """
    from warpwatch.db.database import Database
    from warpwatch.worker.import_bundle import import_bundle

    database = Database(database_url, pool_size=1)
    try:
        return import_bundle(database, path, repository, origin, url).new
    finally:
        database.close()


def _import_and_tell(url: str, file: Path, repository: str | None) -> None:
    new = import_file(url, file, repository)
    typer.echo(f"{file}: imported" if new else f"{file}: was imported before; nothing changed")


def _settings() -> Settings:
    try:
        return load_settings()
    except SettingError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
