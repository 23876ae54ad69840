"""`warpwatch account …`: who may sign in, and with which role."""

from __future__ import annotations

from typing import Any

import typer

from warpwatch.cli import app
from warpwatch.cli.asking import asking
from warpwatch.cli.client import ApiError, Client
from warpwatch.contract.words import AccountRole

account_app = typer.Typer(no_args_is_help=True, help="Accounts of people, for servers with WARPWATCH_TOKEN.")
app.add_typer(account_app, name="account")


@account_app.command("add")
def add_account(
    name: str = typer.Argument(..., help="An e-mail address, where an OpenID provider signs people in."),
    role: AccountRole = typer.Option(AccountRole.VIEWER, help="Each may do what those before it may."),
) -> None:
    """Make an account and print a link that signs its reader in once."""
    with asking() as client:
        typer.echo(client.post("/accounts", {"name": name, "role": role})["link"])


@account_app.command("invite")
def invite(name: str) -> None:
    """Print another link for an account; the one before it ends."""
    with asking() as client:
        typer.echo(client.post(f"/accounts/{_find(client, name)}/invitation")["link"])


@account_app.command("list")
def list_accounts() -> None:
    """List accounts with role, state and last use."""
    with asking() as client:
        before = None
        while True:
            page = client.get("/accounts", before=before)
            for row in page["items"]:
                used = row["last_used_at"] or "never used"
                typer.echo("\t".join([row["name"], row["role"], row["state"], used, row["issuer"] or ""]))
            before = page["next_before"]
            if before is None:
                return


@account_app.command("role")
def set_role(name: str, role: AccountRole) -> None:
    """Change the role. Sessions and tokens that are open follow at once."""
    _change(name, {"role": role})


@account_app.command("disable")
def disable(name: str) -> None:
    """End the sessions and tokens of an account until it is enabled."""
    _change(name, {"is_disabled": True})


@account_app.command("enable")
def enable(name: str) -> None:
    """Let a disabled account sign in again."""
    _change(name, {"is_disabled": False})


@account_app.command("me")
def show_caller() -> None:
    """Print who you are to the server, and what you may do."""
    with asking() as client:
        caller = client.get("/caller")
        typer.echo(f"{caller['name']}\t{caller['scope']}")


def _change(name: str, body: dict[str, Any]) -> None:
    with asking() as client:
        row = client.patch(f"/accounts/{_find(client, name)}", body)
        typer.echo(f"{row['name']} is {row['role']}, {row['state']}")


def _find(client: Client, name: str) -> int:
    rows = client.get("/accounts", name=name)["items"]
    if not rows:
        raise ApiError(f"there is no account {name!r}; see `warpwatch account list`")
    return int(rows[0]["id"])
