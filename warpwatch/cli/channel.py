"""`warpwatch channel …`: where people are told of changes and alarms."""

from __future__ import annotations

from typing import Any

import typer

from warpwatch.cli.app import app
from warpwatch.cli.client import asking
from warpwatch.cli.repository import choose_repository

channel_app = typer.Typer(no_args_is_help=True, help="Chats, mailboxes and webhooks that are told what happens.")
app.add_typer(channel_app, name="channel")
WHICH = typer.Argument(..., metavar="CHANNEL", help="Number; see `warpwatch channel list`.")
REPOSITORY = typer.Option(None, help="Default: the repository of the current folder, or the only one.")


@channel_app.command("list")
def list_channels(repository: str | None = REPOSITORY) -> None:
    """List channels, what they tell of, and how many messages wait or were given up."""
    with asking() as client:
        chosen, _ = choose_repository(client, repository)
        for row in client.get("/channels", repository=chosen, limit=200)["items"]:
            typer.echo(_line(row))


@channel_app.command("add")
def add_channel(
    name: str,
    url: str = typer.Argument(..., help="https://… for a webhook; slack://…, workflows://…, mailto://… of apprise."),
    repository: str | None = REPOSITORY,
    secret: str | None = typer.Option(
        None, envvar="WARPWATCH_CHANNEL_SECRET", help="What the messages of a webhook are signed with."
    ),
    kinds: str = typer.Option("", help="confirmed, broken, settled, fixed, alarm, digest; by commas. Default: all."),
    person: str | None = typer.Option(None, help="Tell only of what this person watches."),
    quiet: str = typer.Option("", metavar="FROM-UNTIL", help="Hours between which messages wait, such as 22-7."),
    time_zone: str = typer.Option("UTC", help="Of the quiet hours and of the digest."),
) -> None:
    """Create a channel, which tells people from now on."""
    with asking() as client:
        chosen, _ = choose_repository(client, repository)
        body: dict[str, Any] = {"repository": chosen, "name": name, "url": url, "time_zone": time_zone}
        body |= {key: value for key, value in {"secret": secret, "person": person}.items() if value is not None}
        if kinds:
            body["kinds"] = [kind.strip() for kind in kinds.split(",")]
        if quiet:
            body["quiet_from"], _, body["quiet_until"] = quiet.partition("-")
        typer.echo(_line(client.post("/channels", body)))


@channel_app.command("remove")
def remove_channel(number: int = WHICH) -> None:
    """Delete a channel."""
    with asking() as client:
        client.delete(f"/channels/{number}")
        typer.echo(f"channel {number} is removed")


@channel_app.command("test")
def send_test_message(number: int = WHICH) -> None:
    """Send a message that says that the channel works."""
    with asking() as client:
        row = client.post(f"/channels/{number}/test")
        typer.echo(f"a message to {row['name']} is on its way; `warpwatch channel list` says whether it was taken")


def _line(row: dict[str, Any]) -> str:
    trouble = [f"{row[name]} {name.replace('_', ' ')}" for name in ("waiting", "given_up") if row[name]]
    return "\t".join([str(row["id"]), row["name"], row["service"], row["url"], ",".join(row["kinds"]), *trouble])
