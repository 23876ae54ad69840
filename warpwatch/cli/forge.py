"""`warpwatch forge …`: the link of a repository to its project on GitHub or GitLab."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import typer

from warpwatch.cli.app import app
from warpwatch.cli.client import Client, asking
from warpwatch.cli.repository import choose_repository
from warpwatch.contract.words import ForgeKind

forge_app = typer.Typer(no_args_is_help=True, help="Check runs, comments, commands and issues on GitHub and GitLab.")
app.add_typer(forge_app, name="forge")
REPOSITORY = typer.Option(None, help="Default: the repository of the current folder, or the only one.")


@forge_app.command("set")
def set_forge(
    forge: ForgeKind,
    project: str = typer.Argument(..., help="OWNER/NAME."),
    repository: str | None = REPOSITORY,
    api_url: str | None = typer.Option(None, help="Of GitLab, such as https://gitlab.example/api/v4."),
    token: str | None = typer.Option(None, envvar="WARPWATCH_FORGE_TOKEN", help="Of the GitLab project."),
    issues: bool = typer.Option(False, "--issues", help="File an issue for every confirmed regression."),
) -> None:
    """Link a repository. Its pull requests then get a check run and one comment each."""
    body: dict[str, Any] = {"forge": forge.value, "project": project, "files_issues": issues}
    if forge is ForgeKind.GITLAB:
        body |= {name: value for name, value in {"api_url": api_url, "token": token}.items() if value is not None}
    elif api_url is not None:
        body["api_url"] = api_url
    with asking() as client:
        _print(client.put(_path(client, repository), body))


@forge_app.command("show")
def show_forge(repository: str | None = REPOSITORY) -> None:
    """Print whether the link works, and how many messages wait or were given up."""
    with asking() as client:
        _print(client.get(_path(client, repository)))


@forge_app.command("check")
def check_forge(repository: str | None = REPOSITORY) -> None:
    """Try the link out, and send again what was given up within a day."""
    with asking() as client:
        client.post(f"{_path(client, repository)}/check")
        typer.echo("the link is tried out; `warpwatch forge show` says whether it works")


@forge_app.command("remove")
def remove_forge(repository: str | None = REPOSITORY) -> None:
    """Send nothing there any more."""
    with asking() as client:
        client.delete(_path(client, repository))
        typer.echo("the link is removed")


def _path(client: Client, repository: str | None) -> str:
    chosen, _ = choose_repository(client, repository)
    return f"/repositories/{quote(chosen, safe='')}/forge"


def _print(row: dict[str, Any]) -> None:
    typer.echo(f"project\t{row['forge']} {row['project']}{' at ' + row['api_url'] if row['api_url'] else ''}")
    typer.echo(f"link\t{row['state']}{': ' + row['error'] if row['error'] else ''}")
    typer.echo(f"issues\t{'filed' if row['files_issues'] else 'not filed'}")
    typer.echo(f"messages\t{row['waiting']} waiting, {row['given_up']} given up")
