"""`warpwatch retention`, and deleting submissions and branches."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlencode

import typer

from warpwatch.cli import app
from warpwatch.cli.asking import asking
from warpwatch.cli.client import ApiError
from warpwatch.cli.repository import choose_repository
from warpwatch.contract.words import RetentionKind

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
