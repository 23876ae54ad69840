"""`warpwatch repository …`: registered repositories, and which of them a checkout belongs to."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer

from warpwatch import git
from warpwatch.cli.app import app
from warpwatch.cli.client import ApiError, Client, asking
from warpwatch.contract.commit_ids import short_sha
from warpwatch.definitions import parse_source

repository_app = typer.Typer(no_args_is_help=True, help="Registered repositories.")
app.add_typer(repository_app, name="repository")
_ADDRESS = re.compile(r"^(?:[a-z+]+://)?(?:[^@/]*@)?([^/:]+)(?::\d+)?[:/]+(.+?)(?:\.git)?/*$", re.IGNORECASE)


@repository_app.command("add")
def add_repository(
    name: str,
    url: str = typer.Argument(..., help="A path on the server, or a URL that the server can clone."),
    definitions: str | None = typer.Option(
        None, metavar="PATH_OR_URL[@REF]", help="Where its operators are defined, if not in its own commits."
    ),
) -> None:
    """Register a repository."""
    with asking() as client:
        body = {"name": name, "url": _absolute(url)}
        if definitions is not None:
            body["definitions"] = _absolute(definitions)
        answer = client.post("/repositories", body)
        typer.echo(f"repository {answer['name']} at {answer['url']}")
        if answer["branch"] is not None:
            typer.echo(f"watched branch {answer['branch']}")
        if answer["definitions_url"] is not None:
            typer.echo(f"definitions {answer['definitions_url']} at {short_sha(answer['definitions_sha'])}")


def _absolute(place: str) -> str:
    """A local path as the server must know it; with a ref of definitions behind it, if there is one."""
    source = parse_source(place)
    local = Path(source.url)
    return str(replace(source, url=str(local.absolute()))) if local.is_dir() else place


@repository_app.command("list")
def list_repositories() -> None:
    """List registered repositories."""
    with asking() as client:
        for row in client.get("/repositories")["items"]:
            typer.echo(f"{row['name']}\t{row['url']}\t{row['commits']} commits\t{row['branch'] or 'no branch yet'}")


@repository_app.command("set")
def set_repository(
    name: str,
    branch: str | None = typer.Option(None, help="The watched branch; an empty text chooses the default branch."),
    definitions: str | None = typer.Option(
        None, metavar="PATH_OR_URL[@REF]", help="Where its operators are defined, if not in its own commits."
    ),
    webhook_secret: str | None = typer.Option(
        None, envvar="WARPWATCH_WEBHOOK_SECRET", help="Secret that signs webhooks."
    ),
    status_url: str | None = typer.Option(None, help="URL for commit statuses; {sha} stands for the commit."),
    status_token: str | None = typer.Option(None, envvar="WARPWATCH_STATUS_TOKEN", help="Token for commit statuses."),
    is_public: bool | None = typer.Option(
        None, "--public/--private", help="Whether anybody may read its results, see publishing.md."
    ),
) -> None:
    """Set the watched branch, the definitions, webhooks, commit statuses and readers.

    An empty text removes a setting.
    """
    definitions = _absolute(definitions) if definitions else definitions
    given = {
        "branch": branch,
        "definitions": definitions,
        "webhook_secret": webhook_secret,
        "status_url": status_url,
        "status_token": status_token,
    }
    body: dict[str, Any] = {field: value or None for field, value in given.items() if value is not None}
    if is_public is not None:
        body["is_public"] = is_public
    with asking() as client:
        if not body:
            raise ApiError("nothing to set; see `warpwatch repository set --help`")
        row = client.patch(f"/repositories/{name}", body)
        typer.echo(f"branch\t{row['branch'] or 'no branch yet'}")
        typer.echo(f"definitions\t{row['definitions_url'] or 'in its own commits'}")
        typer.echo(
            f"webhooks\t{'signed' if row['has_webhook_secret'] else 'not accepted'} at {client.url}/api/v1/hooks/{name}"
        )
        typer.echo(f"statuses\t{row['status_url'] or 'not sent'}{' with a token' if row['has_status_token'] else ''}")
        typer.echo(f"readers\t{'anybody, where the server lets the public in' if row['is_public'] else 'accounts'}")


@repository_app.command("delete")
def delete_repository(name: str, yes: bool = typer.Option(False, "--yes", help="Do not ask.")) -> None:
    """Delete a repository with all commits, results and traces. This cannot be undone."""
    with asking() as client:
        row = client.get(f"/repositories/{quote(name, safe='')}")
        if not yes:
            typed = typer.prompt(f"{row['commits']} commits with all results will be deleted. Type {name} to confirm")
            if typed != name:
                raise ApiError(f"nothing was deleted: {typed!r} is not {name!r}")
        client.delete(f"/repositories/{quote(name, safe='')}")
        typer.echo(f"repository {name} is deleted; its rows go in the background")


def choose_repository(client: Client, name: str | None, here: Path | None = None) -> tuple[str, Path | None]:
    """(name of the repository, root of the checkout if it is that repository or a clone of it).

    here: root of a checkout; by default that of the current folder.
    """
    rows = client.get("/repositories")["items"]
    if here is None:
        with suppress(git.GitError):
            here = Path(git.git("rev-parse", "--show-toplevel").strip())
    ours = [row["name"] for row in rows if here is not None and _is_same(row["url"], here)]
    if name is None:
        candidates = ours or [row["name"] for row in rows]
        if len(candidates) != 1:
            known = ", ".join(row["name"] for row in rows) or "none; add one with `warpwatch repository add NAME URL`"
            raise ApiError(f"choose a repository with --repository; registered: {known}")
        name = str(candidates[0])
    return name, here if name in ours else None


def _is_same(url: str, here: Path) -> bool:
    """Whether a checkout is the repository at `url`, or a clone of it by any protocol."""
    try:
        origin = git.git("remote", "get-url", "origin", cwd=here).strip()
    except git.GitError:
        origin = ""
    return url in (str(here), origin) or (bool(origin) and place_of(url) == place_of(origin) is not None)


def place_of(url: str) -> str | None:
    """host/owner/name of an address on a code host, in any notation; None for a path."""
    if url.startswith(("/", ".", "file:")) or not (match := _ADDRESS.match(url)):
        return None
    return f"{match[1]}/{match[2]}".lower()
