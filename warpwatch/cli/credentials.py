"""Commands for accounts, tokens, keys of workers, and trusted CI jobs."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import typer

from warpwatch.cli.app import app
from warpwatch.cli.client import ApiError, Client, asking
from warpwatch.contract.words import AccountRole, TokenScope

account_app = typer.Typer(no_args_is_help=True, help="Accounts of people, for servers with WARPWATCH_TOKEN.")
app.add_typer(account_app, name="account")


@account_app.command("add")
def add_account(
    name: str = typer.Argument(..., help="An e-mail address, where an OpenID provider signs people in."),
    role: AccountRole = typer.Option(AccountRole.VIEWER, help="Each may do what those before it may."),
) -> None:
    """Create an account and print a link that signs its reader in once."""
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


token_app = typer.Typer(no_args_is_help=True, help="Personal tokens, for servers with WARPWATCH_TOKEN.")
app.add_typer(token_app, name="token")


@token_app.command("add")
def add_token(
    person: str | None = typer.Argument(None, help="Name of the account; default: your own."),
    scope: TokenScope = typer.Option(
        TokenScope.READ, help="Each includes those before it; the role of the account limits it."
    ),
    purpose: str = typer.Option("", help="Where it is used, such as CI."),
    days: int = typer.Option(90, help="How long it is valid; 0 for as long as it is not revoked."),
) -> None:
    """Make a token and print it; it is not shown again. A new name makes an account."""
    with asking() as client:
        body = {"person": person, "scope": scope, "purpose": purpose, "days": days or None}
        typer.echo(client.post("/tokens", body)["token"])


@token_app.command("list")
def list_tokens() -> None:
    """List tokens with scope, state and last use."""
    with asking() as client:
        for row in client.get("/tokens", limit=200)["items"]:
            used = row["last_used_at"] or "never used"
            typer.echo("\t".join([str(row["id"]), row["person"], row["scope"], row["state"], used, row["purpose"]]))


@token_app.command("revoke")
def revoke_token(number: int = typer.Argument(..., help="See `warpwatch token list`.")) -> None:
    """Revoke a token, and the sessions that it opened, at once."""
    with asking() as client:
        client.delete(f"/tokens/{number}")
        typer.echo(f"token {number} is revoked")


key_app = typer.Typer(no_args_is_help=True, help="Keys of workers that reach the server and not the database.")
app.add_typer(key_app, name="key")


@key_app.command("add")
def add_key(name: str = typer.Argument(..., help="Whose workers use it, such as cluster-a.")) -> None:
    """Make a key and print it. It is not stored, so it is shown this once."""
    with asking() as client:
        typer.echo(client.post("/worker-keys", {"name": name})["key"])


@key_app.command("list")
def list_keys() -> None:
    """List keys with their creation, last use, number of workers, and whether they are revoked."""
    with asking() as client:
        before = None
        while True:
            page = client.get("/worker-keys", before=before)
            for row in page["items"]:
                used = row["last_used_at"] or "never used"
                state = f"revoked {row['revoked_at']}" if row["revoked_at"] else f"{row['workers']} workers"
                typer.echo(f"{row['name']}\t{row['created_at']}\t{used}\t{state}")
            before = page["next_before"]
            if before is None:
                return


@key_app.command("revoke")
def revoke_key(name: str) -> None:
    """Revoke a key. Its workers end, and their jobs return to the queue."""
    with asking() as client:
        client.delete(f"/worker-keys/{quote(name, safe='')}")
        typer.echo(f"key {name} is revoked")


ci_app = typer.Typer(no_args_is_help=True, help="CI jobs that submit without a stored secret.")
app.add_typer(ci_app, name="ci")


@ci_app.command("trust")
def trust(
    repository: str = typer.Argument(..., help="Name of a registered repository."),
    github: str | None = typer.Option(None, help="OWNER/NAME on GitHub whose workflows may submit."),
    gitlab: str | None = typer.Option(None, help="GROUP/PROJECT on GitLab whose pipelines may submit."),
    issuer: str | None = typer.Option(None, help="Address of the GitLab server, or of another issuer."),
    subject: str | None = typer.Option(None, help="Instead of both: whom the token must name; * for anything."),
    audience: str | None = typer.Option(None, help="For whom the token is made. Default: WARPWATCH_URL of the server."),
) -> None:
    """Let CI jobs submit for a repository, and read their submissions."""
    if sum(option is not None for option in (github, gitlab, subject)) != 1:
        raise typer.BadParameter("give one of --github, --gitlab and --subject")
    if gitlab is not None:
        subject, issuer = f"project_path:{gitlab}:*", issuer or "https://gitlab.com"
    elif github is not None:
        subject = f"repo:{github}:*"
    with asking() as client:
        body = {"subject": subject, "audience": audience} | ({"issuer": issuer} if issuer else {})
        row = client.post(f"/repositories/{quote(repository, safe='')}/ci", body)
        typer.echo(f"{row['id']}\t{row['issuer']}\t{row['subject']}\tfor {row['audience']}")


@ci_app.command("list")
def list_trusted(repository: str) -> None:
    """List the CI jobs that a repository trusts, with their last use."""
    with asking() as client:
        before = None
        while True:
            page = client.get(f"/repositories/{quote(repository, safe='')}/ci", before=before)
            for row in page["items"]:
                used = row["last_used_at"] or "never used"
                typer.echo("\t".join([str(row["id"]), row["issuer"], row["subject"], row["audience"], used]))
            before = page["next_before"]
            if before is None:
                return


@ci_app.command("remove")
def remove(repository: str, number: int = typer.Argument(..., help="See `warpwatch ci list`.")) -> None:
    """Trust CI jobs no longer."""
    with asking() as client:
        client.delete(f"/repositories/{quote(repository, safe='')}/ci/{number}")
        typer.echo(f"CI jobs {number} are not trusted any more")
