"""`warpwatch import`: brings in what a machine without a server measured, and what other programs wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from warpwatch import git
from warpwatch.cli import app
from warpwatch.formats import FILE_LIMIT, FORMATS, SAMPLE_LIMIT
from warpwatch.settings import SettingError, Settings, load_settings

if TYPE_CHECKING:
    from warpwatch.server.intake.foreign_results import ForeignFile


@app.command("import")
def import_files(
    files: list[Path] = typer.Argument(help="Results files (.wwb) of `warpwatch run`, or files of --format."),
    repository: str | None = typer.Option(
        None, help="Name of the repository to record them under, instead of their own."
    ),
    file_format: str = typer.Option("wwb", "--format", help=f"Who wrote them: wwb, {', '.join(FORMATS)}."),
    commit: str | None = typer.Option(
        None, help="What was measured: a SHA, branch or tag. For other formats than wwb."
    ),
    program: str | None = typer.Option(None, help="Operator to record them under; the name of the format by default."),
    device: str | None = typer.Option(None, help="Key of the device; what the file says by default."),
) -> None:
    """Bring results files in; each as a whole or not at all, and a second time changes nothing."""
    from warpwatch.bundle import BundleError
    from warpwatch.cli.database import database_url
    from warpwatch.db.errors import EngineError
    from warpwatch.server.intake.foreign_results import ForeignFile, ForeignFileError

    if (file_format == "wwb") != (commit is None):
        typer.echo("--commit and --format go together: files of `warpwatch run` name their own commits", err=True)
        raise typer.Exit(2)
    settings, failed = _settings(), False
    try:
        with database_url(settings) as url:
            for file in files:
                try:
                    if commit is None:
                        is_new = import_file(url, file, repository, fetch=_Mirrors(settings).fetch)
                    else:
                        foreign = ForeignFile(
                            _read(file),
                            file.name,
                            commit,
                            file_format,
                            repository,
                            program,
                            device,
                            _Sidecars(file).fetch,
                        )
                        is_new = _import_foreign(url, settings, foreign)
                    typer.echo(f"{file}: imported" if is_new else f"{file}: was imported before; nothing changed")
                except (BundleError, ForeignFileError, OSError) as error:
                    failed = True
                    typer.echo(str(error), err=True)
    except EngineError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if failed:
        raise typer.Exit(2)


def import_file(
    database_url: str,
    path: Path,
    repository: str | None = None,
    origin: str = "bundle",
    url: str | None = None,
    fetch: Callable[[str], None] = lambda _: None,
) -> bool:
    """Imports one results file; False when it had been imported before. url: where its repository is here. fetch: see
    server.intake.bundles.

    BundleError, EngineError: nothing was written.
    """
    from warpwatch.db.database import Database
    from warpwatch.server.intake.bundles import import_bundle

    database = Database(database_url, pool_size=1)
    try:
        return import_bundle(database, path, repository, origin, url, fetch).new
    finally:
        database.close()


def _import_foreign(database_url: str, settings: Settings, file: ForeignFile) -> bool:
    from warpwatch.db.database import Database
    from warpwatch.server.intake.foreign_results import import_foreign

    database = Database(database_url, pool_size=1)
    try:
        return import_foreign(database, settings, file).new
    finally:
        database.close()


def _read(file: Path) -> bytes:
    """The file, or so much of it that its reader sees that it is too long."""
    with file.open("rb") as opened:
        return opened.read(FILE_LIMIT + 1)


class _Mirrors:
    """Fetches the commits that results are about, where their host answers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def fetch(self, url: str) -> None:
        try:
            git.update_mirror(url, self._settings.home, self._settings.destinations, git.REQUEST_SECONDS)
        except git.GitError as error:
            typer.echo(
                f"its results get charts and no verdict, because its history cannot be fetched: {error}", err=True
            )


class _Sidecars:
    """The files of samples beside a JSON of nvbench; the paths that it names cannot leave its folder."""

    def __init__(self, file: Path) -> None:
        self._folder = file.resolve().parent

    def fetch(self, name: str) -> bytes | None:
        path = self._folder / name
        if not path.is_file() or not path.resolve().is_relative_to(self._folder):
            return None
        with path.open("rb") as opened:
            return opened.read(4 * SAMPLE_LIMIT + 1)


def _settings() -> Settings:
    try:
        return load_settings()
    except SettingError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
