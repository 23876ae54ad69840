"""`warpwatch repository …`: what the server measures, and which of it a checkout belongs to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from warpwatch import git
from warpwatch.cli import app
from warpwatch.cli.asking import asking
from warpwatch.cli.client import ApiError, Client

repository_app = typer.Typer(no_args_is_help=True, help="Repositories that the server measures.")
app.add_typer(repository_app, name="repository")
_ADDRESS = re.compile(r"^(?:[a-z+]+://)?(?:[^@/]*@)?([^/:]+)(?::\d+)?[:/]+(.+?)(?:\.git)?/*$", re.IGNORECASE)


@repository_app.command("add")
def add_repository(
    name: str, url: str = typer.Argument(..., help="A path on the server, or a URL it can reach.")
) -> None:
    """Register a repository."""
    with asking() as client:
        local = Path(url)
        answer = client.post("/repositories", {"name": name, "url": str(local.absolute()) if local.is_dir() else url})
        typer.echo(f"repository {answer['name']} at {answer['url']}")


@repository_app.command("list")
def list_repositories() -> None:
    """List registered repositories."""
    with asking() as client:
        for row in client.get("/repositories")["items"]:
            typer.echo(f"{row['name']}\t{row['url']}\t{row['commits']} commits")


@repository_app.command("set")
def set_repository(
    name: str,
    branch: str | None = typer.Option(None, help="The branch that is watched."),
    webhook_secret: str | None = typer.Option(
        None, envvar="WARPWATCH_WEBHOOK_SECRET", help="What webhooks are signed with."
    ),
    status_url: str | None = typer.Option(None, help="Where commit statuses are sent, with {sha} for the commit."),
    status_token: str | None = typer.Option(
        None, envvar="WARPWATCH_STATUS_TOKEN", help="What commit statuses are sent with."
    ),
) -> None:
    """Say which branch is watched, and how the server and a code host talk. An empty text takes a setting away."""
    given = {"branch": branch, "webhook_secret": webhook_secret, "status_url": status_url, "status_token": status_token}
    body: dict[str, Any] = {field: value or None for field, value in given.items() if value is not None}
    with asking() as client:
        if not body:
            raise ApiError("say what to set; see `warpwatch repository set --help`")
        row = client.patch(f"/repositories/{name}", body)
        typer.echo(f"branch\t{row['branch'] or 'the default one'}")
        typer.echo(
            f"webhooks\t{'signed' if row['has_webhook_secret'] else 'not taken'} at {client.url}/api/v1/hooks/{name}"
        )
        typer.echo(f"statuses\t{row['status_url'] or 'not sent'}{' with a token' if row['has_status_token'] else ''}")


def choose_repository(client: Client, name: str | None) -> tuple[str, Path | None]:
    """The repository meant, and the checkout we stand in when it is that repository's own or a clone of it."""
    rows = client.get("/repositories")["items"]
    try:
        here = Path(git.git("rev-parse", "--show-toplevel").strip())
    except git.GitError:
        here = None
    ours = [row["name"] for row in rows if here is not None and _is_same(row["url"], here)]
    if name is None:
        candidates = ours or [row["name"] for row in rows]
        if len(candidates) != 1:
            known = ", ".join(row["name"] for row in rows) or "none; add one with `warpwatch repository add NAME URL`"
            raise ApiError(f"say which repository with --repository; registered are: {known}")
        name = str(candidates[0])
    return name, here if name in ours else None


def _is_same(url: str, here: Path) -> bool:
    """Whether a checkout is the repository at `url`, or was cloned from it by whatever protocol."""
    try:
        origin = git.git("remote", "get-url", "origin", cwd=here).strip()
    except git.GitError:
        origin = ""
    return url in (str(here), origin) or (bool(origin) and place_of(url) == place_of(origin) is not None)


def place_of(url: str) -> str | None:
    """host/owner/name of an address on a code host, however it is written; None for a path."""
    if url.startswith(("/", ".", "file:")) or not (match := _ADDRESS.match(url)):
        return None
    return f"{match[1]}/{match[2]}".lower()
