"""`warpwatch key …`: keys of workers that have no address of the database."""

from __future__ import annotations

from urllib.parse import quote

import typer

from warpwatch.cli import app
from warpwatch.cli.asking import asking

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
