"""`warpwatch device …`: devices that the server knows."""

from __future__ import annotations

import typer

from warpwatch.cli import app
from warpwatch.cli.asking import asking

device_app = typer.Typer(no_args_is_help=True, help="Devices that the server knows.")
app.add_typer(device_app, name="device")


@device_app.command("add")
def add_device(
    key: str = typer.Argument(..., help="Model in lower case with dashes, such as nvidia-h200."),
    elastic: bool = typer.Option(False, help="A scheduler starts workers when jobs wait, so jobs may be queued now."),
    kind: str = typer.Option("cuda", help="cpu or cuda."),
    name: str | None = typer.Option(None, help="Name for people. Default: what the first worker says, until then KEY."),
) -> None:
    """Make a device known before a worker was there, or change whether it is elastic."""
    with asking() as client:
        row = client.post("/devices", {"key": key, "kind": kind, "name": name, "is_elastic": elastic})
        typer.echo(f"{row['key']}\t{row['name']}\t{'elastic' if row['is_elastic'] else 'not elastic'}")


@device_app.command("list")
def list_devices() -> None:
    """List devices with their workers and jobs."""
    with asking() as client:
        for row in client.get("/devices")["items"]:
            counts = f"{row['workers']} workers\t{row['queued']} queued\t{row['running']} running"
            typer.echo("\t".join([row["key"], counts, *(["elastic"] if row["is_elastic"] else [])]))
