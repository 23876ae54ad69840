"""Commands for the database: migration, backup, restore, retention."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import typer

from warpwatch.cli.app import app, exit_on
from warpwatch.cli.client import ApiError, asking
from warpwatch.cli.repository import choose_repository
from warpwatch.contract.words import RetentionKind
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
    from warpwatch.db.migrate import differences, pending, upgrade

    with exit_on(EngineError, SettingError), database_url(load_settings()) as url:
        if check:
            lines = differences(url)
            if lines:
                typer.echo("the migrations (+) and db/models (-) differ:", err=True)
                typer.echo("\n".join(lines), err=True)
                raise typer.Exit(1)
            typer.echo("the migrations produce the schema of db/models")
        else:
            missing = pending(url)
            upgrade(url)
            applied = f"applied {missing} migration{'s' * (missing != 1)}"
            typer.echo(applied if missing else "the database is up to date")


@app.command()
def backup(file: Path = typer.Argument(..., help="File to write; one of that name is replaced.")) -> None:
    """Write repositories, results, traces and settings into a file, also while servers and workers run.

    The file holds secrets of webhooks and commit statuses; only its owner may read it.
    """
    from warpwatch.cli.database import database_url
    from warpwatch.db.backup import back_up
    from warpwatch.db.errors import EngineError

    with exit_on(EngineError, SettingError, OSError), database_url(load_settings()) as url:
        size = back_up(url, file)
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

    with exit_on(EngineError, SettingError, OSError), database_url(load_settings()) as url:
        backups.restore(url, file, replace=replace)
    typer.echo(f"{file} is restored")


submission_app = typer.Typer(no_args_is_help=True, help="Submissions.")
app.add_typer(submission_app, name="submission")
branch_app = typer.Typer(no_args_is_help=True, help="Measured branches.")
app.add_typer(branch_app, name="branch")
FOR_GOOD = "never"


@app.command()
def retention(
    repository: str | None = typer.Option(None, help="Default: the repository of the current folder, or the only one."),
    keep: list[str] = typer.Option(
        [],
        metavar="KIND=DAYS",
        help=f"How many days a kind is kept: {', '.join(RetentionKind)}. `{FOR_GOOD}` deletes none. May be repeated.",
    ),
    preview: bool = typer.Option(False, help="Change nothing; print what would be deleted."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show or set how long a repository keeps samples, traces, logs, logs of builds and its mirror.

    The server deletes what is older every hour. Medians, statuses and verdicts are kept for good.
    """
    with asking() as client:
        chosen, _ = choose_repository(client, repository)
        path = f"/repositories/{quote(chosen, safe='')}/retention"
        body = dict(map(_parse, keep))
        if preview and body:
            rows = client.post(f"{path}/preview", body)["items"]
        else:
            rows = (client.patch(path, body) if body and not preview else client.get(path))["items"]
        if as_json:
            typer.echo(json.dumps(rows))
        for row in [] if as_json else rows:
            kept = f"{row['days']} days" if row["days"] else "for good"
            due = f"{row['due_rows']} rows, {row['due_bytes'] / 1e6:.1f} MB to delete" if row["days"] else ""
            typer.echo(f"{row['kind']}\t{kept}\t{due}")


def _parse(text: str) -> tuple[str, int | None]:
    kind, _, days = text.partition("=")
    if kind not in list(RetentionKind) or not (days == FOR_GOOD or days.isdecimal()):
        raise ApiError(
            f"--keep {text!r} is no KIND=DAYS; use one of {', '.join(RetentionKind)}, and days or {FOR_GOOD}"
        )
    return kind, None if days == FOR_GOOD else int(days)


@submission_app.command("delete")
def delete_submission(number: int, yes: bool = typer.Option(False, "--yes", help="Do not ask.")) -> None:
    """Delete a submission with its jobs, results and traces. This cannot be undone."""
    with asking() as client:
        row: dict[str, Any] = client.get(f"/submissions/{number}")
        jobs = sum(row["counts"].values())
        _confirm(yes, f"{jobs} jobs of submission {number} will be deleted with all results")
        client.delete(f"/submissions/{number}")
        typer.echo(f"submission {number} is deleted; its rows go in the background")


@branch_app.command("delete")
def delete_branch(
    name: str,
    repository: str | None = typer.Option(None, help="Default: the repository of the current folder, or the only one."),
    yes: bool = typer.Option(False, "--yes", help="Do not ask."),
) -> None:
    """Delete the commits that only this branch holds, with their results. Git keeps them; the results are gone."""
    with asking() as client:
        chosen, _ = choose_repository(client, repository)
        _confirm(yes, f"all results of the commits that only {name} of {chosen} holds will be deleted")
        client.delete(f"/branches?{urlencode({'repository': chosen, 'name': name})}")
        typer.echo(f"branch {name} is deleted; its rows go in the background")


def _confirm(yes: bool, question: str) -> None:
    if not yes and not typer.confirm(f"{question}. Go on?"):
        raise ApiError("nothing was deleted")
