"""`warpwatch export`: writes the results of a repository to a file."""

from __future__ import annotations

from pathlib import Path

import typer

from warpwatch.cli import app
from warpwatch.settings import SettingError, load_settings


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
        with database_url(load_settings()) as url:
            database = Database(url, pool_size=1)
            try:
                with database.session() as session:
                    row = find_repository(session, repository)
                    at = find_commit(session, row.id, commit) if row and commit else None
                if row is None or (commit and at is None):
                    raise ExportError(
                        f"there is no {'commit' if row else 'repository'} {commit if row else repository!r}"
                    )
                if suffix == "wwb":
                    export_bundle(database, row, partial)
                else:
                    chosen = ExportFilter(row.id, operator, device, metric, at.sha if at else None, samples)
                    with partial.open("wb") as file:
                        file.writelines(WRITERS[suffixes[suffix]][0](read_pages(database, chosen)))
                partial.replace(output)
            finally:
                database.close()
    except (EngineError, ExportError, SettingError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    finally:
        partial.unlink(missing_ok=True)
    typer.echo(f"{output}: {output.stat().st_size / 1e6:.2f} MB")
