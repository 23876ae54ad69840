"""`warpwatch token …`: personal tokens of people and programs."""

from __future__ import annotations

import typer

from warpwatch.cli import app
from warpwatch.cli.asking import asking
from warpwatch.contract.words import TokenScope

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
