"""`warpwatch strike-out` takes the results of a job out of history, verdicts and badges, and back in."""

from __future__ import annotations

import typer

from warpwatch.cli import app
from warpwatch.cli.asking import asking
from warpwatch.cli.client import ApiError


@app.command("strike-out")
def strike_out(
    job: int = typer.Option(..., help="The job whose results do not count."),
    reason: str | None = typer.Option(None, help="Why; shown beside the results."),
    undo: bool = typer.Option(False, "--undo", help="Let them count again."),
) -> None:
    """Strike out the results of a job: they stay visible there and count nowhere else."""
    with asking() as client:
        if undo:
            client.delete(f"/jobs/{job}/strike-out")
            typer.echo(f"the results of job {job} count again")
            return
        if reason is None:
            raise ApiError("say why with --reason")
        client.post(f"/jobs/{job}/strike-out", {"reason": reason})
        typer.echo(f"the results of job {job} are struck out")
