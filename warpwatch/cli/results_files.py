"""Commands that import, export and strike out results."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from warpwatch import git
from warpwatch.cli.app import app, exit_on
from warpwatch.cli.client import ApiError, asking
from warpwatch.contract.commit_ids import short_sha
from warpwatch.formats import FILE_LIMIT, FORMATS, SAMPLE_LIMIT
from warpwatch.settings import SettingError, Settings, load_settings

if TYPE_CHECKING:
    from warpwatch.server.intake.foreign_results import ForeignFile

_SHOWN_FAULTS = 20


@app.command("import")
def import_files(
    files: list[Path] = typer.Argument(
        help="Results files (.wwb) of `warpwatch run`, or files of --format; `-` for standard input, a folder for all "
        "files in it."
    ),
    repository: str | None = typer.Option(
        None, help="Name of the repository to record them under, instead of their own."
    ),
    file_format: str = typer.Option("wwb", "--format", help=f"Who wrote them: wwb, {', '.join(FORMATS)}."),
    commit: str | None = typer.Option(
        None, help="What was measured: a SHA, branch or tag; what the file says by default. Not for wwb."
    ),
    program: str | None = typer.Option(None, help="Operator to record them under; the name of the format by default."),
    device: str | None = typer.Option(None, help="Key of the device; what the file says by default."),
    confirm: bool = typer.Option(
        False,
        "--confirm",
        help="Compare both commits of each change that the results show, by the repository's own program or operator, "
        "where a worker has the device.",
    ),
) -> None:
    """Bring results files in; each as a whole or not at all, and a second time changes nothing."""
    from warpwatch.bundle import BundleError
    from warpwatch.cli.database import database_url
    from warpwatch.db.errors import EngineError
    from warpwatch.server.intake.foreign_results import ForeignFile, ForeignFileError

    if file_format == "wwb" and commit is not None:
        typer.echo("--commit goes with a --format: files of `warpwatch run` name their own commits", err=True)
        raise typer.Exit(2)
    failed = False
    with exit_on(EngineError, SettingError):
        settings = load_settings()
        with database_url(settings) as url:
            for file in _expand(files, file_format):
                left_out: list[str] = []
                awaits = ""
                try:
                    if file_format == "wwb":
                        fetch = functools.partial(fetch_commits, settings)
                        is_new = import_file(url, file, repository, fetch=fetch, confirm=confirm)
                    else:
                        foreign = ForeignFile(
                            _read(file),
                            file.name,
                            commit,
                            file_format,
                            repository,
                            program,
                            device,
                            confirm,
                            _Sidecars(file).fetch,
                        )
                        is_new, left_out, awaits = _import_foreign(url, settings, foreign)
                    if awaits:
                        typer.echo(f"{file}: waits until the repository has the commit {short_sha(awaits)}")
                    else:
                        typer.echo(f"{file}: imported" if is_new else f"{file}: was imported before; nothing changed")
                    for fault in left_out[:_SHOWN_FAULTS]:
                        typer.echo(f"{file}: left out: {fault}", err=True)
                    if len(left_out) > _SHOWN_FAULTS:
                        typer.echo(f"{file}: left out {len(left_out) - _SHOWN_FAULTS} more", err=True)
                except (BundleError, ForeignFileError, OSError) as error:
                    failed = True
                    # Others name their file.
                    where = f"{file}: " if isinstance(error, ForeignFileError) else ""
                    typer.echo(f"{where}{error}", err=True)
    if failed:
        raise typer.Exit(2)


def import_file(
    database_url: str,
    path: Path,
    repository: str | None = None,
    origin: str = "bundle",
    url: str | None = None,
    fetch: Callable[[str], None] = lambda _: None,
    *,
    confirm: bool = False,
) -> bool:
    """Imports one results file; False when it had been imported before. url: where its repository is here. fetch,
    confirm: see server.intake.bundles.

    BundleError, EngineError: nothing was written.
    """
    from warpwatch.db.database import Database
    from warpwatch.server.intake.bundles import import_bundle

    with closing(Database(database_url, pool_size=1)) as database:
        return import_bundle(database, path, repository, origin, url, fetch, confirm=confirm).new


def _import_foreign(database_url: str, settings: Settings, file: ForeignFile) -> tuple[bool, list[str], str]:
    """Whether the file is new, what of it could not be read, and the commit that it waits for, "" for none."""
    from warpwatch.db.database import Database
    from warpwatch.server.intake.foreign_results import import_foreign

    with closing(Database(database_url, pool_size=1)) as database:
        imported = import_foreign(database, settings, file)
        return imported.new, imported.left_out, imported.awaits


def _expand(paths: list[Path], file_format: str) -> list[Path]:
    """The files, and those of the format in folders, in the order of their paths. asv keeps two without results."""
    ends, others = (".wwb",) if file_format == "wwb" else (".json",), ("machine.json", "benchmarks.json")
    return [
        file
        for path in paths
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file is path or (file.suffix in ends and file.name not in others and file.is_file())
    ]


def _read(file: Path) -> bytes:
    """The file, or so much of it that its reader sees that it is too long."""
    if str(file) == "-":
        return sys.stdin.buffer.read(FILE_LIMIT + 1)
    with file.open("rb") as opened:
        return opened.read(FILE_LIMIT + 1)


def fetch_commits(settings: Settings, url: str) -> None:
    """Fetches the commits that results are about, where their host answers."""
    try:
        git.update_mirror(url, settings.home, settings.destinations, git.REQUEST_SECONDS)
    except git.GitError as error:
        typer.echo(f"its results get charts and no verdict, because its history cannot be fetched: {error}", err=True)


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


@app.command()
def export(
    output: Path = typer.Argument(
        ...,
        help="File to write; its end names the format: .csv, .json, .parquet or .nvbench.json for times, .wwb for all "
        "results with their traces, which `warpwatch import` reads.",
    ),
    repository: str = typer.Option(..., help="Name of the repository."),
    operator: str | None = typer.Option(None, help="One operator; all by default."),
    device: str | None = typer.Option(None, help="Key of one device; all by default."),
    metric: str | None = typer.Option(None, help="One metric; all by default."),
    commit: str | None = typer.Option(None, help="One commit, by its SHA; all by default."),
    samples: bool = typer.Option(False, help="Write every sample, too."),
) -> None:
    """Write all times of a repository as CSV, JSON, Parquet or nvbench JSON, or all its results as a results file."""
    from warpwatch.cli.database import database_url
    from warpwatch.db.database import Database
    from warpwatch.db.errors import EngineError
    from warpwatch.db.reads.code import find_commit, find_repository
    from warpwatch.db.reads.export import ExportFilter
    from warpwatch.server.figures.exports import WRITERS, ExportError, read_pages
    from warpwatch.server.intake.bundles import export_bundle

    suffixes = {suffix: name for name, (_, _, suffix) in WRITERS.items()}
    ends = [*sorted(suffixes, key=len, reverse=True), "wwb"]
    suffix = next((end for end in ends if output.name.endswith(f".{end}")), None)
    if suffix is None:
        typer.echo(f"{output}: end its name in {', '.join(f'.{end}' for end in ends)}", err=True)
        raise typer.Exit(2)
    if suffix == "wwb" and (operator or device or metric or commit or samples):
        typer.echo("a results file (.wwb) holds everything; name the repository alone", err=True)
        raise typer.Exit(2)
    partial = output.with_name(f"{output.name}.partial")
    try:
        with database_url(load_settings()) as url, closing(Database(url, pool_size=1)) as database:
            with database.session() as session:
                row = find_repository(session, repository)
                at = find_commit(session, row.id, commit) if row and commit else None
            if row is None or (commit and at is None):
                raise ExportError(f"there is no {'commit' if row else 'repository'} {commit if row else repository!r}")
            if suffix == "wwb":
                export_bundle(database, row, partial)
            else:
                chosen = ExportFilter(row.id, operator, device, metric, at.sha if at else None, samples)
                with partial.open("wb") as file:
                    file.writelines(WRITERS[suffixes[suffix]][0](read_pages(database, chosen)))
            partial.replace(output)
    except (EngineError, ExportError, SettingError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    finally:
        partial.unlink(missing_ok=True)
    typer.echo(f"{output}: {output.stat().st_size / 1e6:.2f} MB")


@app.command("strike-out")
def strike_out(
    job: int = typer.Option(..., help="The job whose results do not count."),
    reason: str | None = typer.Option(None, help="Why; shown beside the results."),
    undo: bool = typer.Option(False, "--undo", help="Let them count again."),
) -> None:
    """Strike out the results of a job: they stay visible there and count nowhere else."""
    with asking() as client:
        if undo:
            client.delete(f"/jobs/{job}/strike-out")
            typer.echo(f"the results of job {job} count again")
            return
        if reason is None:
            raise ApiError("say why with --reason")
        client.post(f"/jobs/{job}/strike-out", {"reason": reason})
        typer.echo(f"the results of job {job} are struck out")
