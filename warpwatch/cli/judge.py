"""Commands for judgements: have a patch judged by a server, and verify the receipt of anybody's judgement."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import typer

from warpwatch.cli.app import app
from warpwatch.cli.client import asking
from warpwatch.cli.repository import choose_repository
from warpwatch.contract.words import JudgementVerdict

POLL_SECONDS = 1.0
receipt_app = typer.Typer(no_args_is_help=True, help="Receipts: signed statements of what a judgement measured.")
app.add_typer(receipt_app, name="receipt")


@app.command("judge")
def judge(
    operator: str = typer.Argument(..., help="The operator whose variants the patch changes."),
    patch: Path = typer.Option(..., exists=True, dir_okay=False, help="Output of `git diff --binary BASE`."),
    repository: str | None = typer.Option(None, help="Name on the server. Default: that of the checkout."),
    output: Path = typer.Option(Path("receipt.jws"), help="Where the receipt is written."),
) -> None:
    """Have a patch judged on hidden cases, and write the receipt. Exit code 0: faster or same; 1: any other verdict."""
    with asking() as client:
        name, _ = choose_repository(client, repository, Path.cwd())
        row = client.post("/judgements", {"repository": name, "operator": operator, "patch": patch.read_text()})
        typer.echo(f"judgement {row['id']}: {client.url}/runs/judgements", err=True)
        while row["state"] == "pending":
            time.sleep(POLL_SECONDS)
            row = client.get(f"/judgements/{row['id']}")
    output.write_text(row["receipt"])
    at_least = f", at least {row['at_least']:g} times as fast on hidden cases" if row["at_least"] else ""
    typer.echo(f"{row['verdict']}{at_least}; receipt in {output}")
    raise typer.Exit(0 if row["verdict"] in (JudgementVerdict.FASTER, JudgementVerdict.SAME) else 1)


@receipt_app.command("verify")
def verify(
    file: Path = typer.Argument(..., exists=True, dir_okay=False, help="The receipt."),
    keys: Path | None = typer.Option(
        None, exists=True, dir_okay=False, help="A server's /api/v1/receipts/keys. Default: those of WARPWATCH_URL."
    ),
) -> None:
    """Print what a receipt states, if the server signed exactly this. Exit code 1: it proves nothing."""
    from warpwatch.server.receipts import ReceiptError, verify_receipt

    try:
        if keys is not None:
            trusted: dict[str, Any] = json.loads(keys.read_text())
        else:
            with asking() as client:
                trusted = client.get("/receipts/keys")
        statement = verify_receipt(file.read_text(), trusted)
    except (ReceiptError, ValueError) as error:
        typer.echo(f"{file} is not verified: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(json.dumps(statement, indent=2))
