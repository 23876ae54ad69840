"""Prints what a submission found."""

from __future__ import annotations

from typing import Any

import typer

ROWS_SHOWN = 20
NAMES = {"unsure": "inconclusive"}
"""Shown instead of the stored kind of a finding."""


def show_findings(report: dict[str, Any]) -> None:
    """Prints the worst findings of a report of the server, with their reproduce commands."""
    for row in report["rows"][:ROWS_SHOWN]:
        cell = " ".join(part for part in (row["operator"], row["variant"], row["case"]) if part)
        ratio = f" × {row['ratio']:.3f}" if row["ratio"] is not None else ""
        baseline = f" vs {row['base_sha'][:9]}" if row["base_sha"] else ""
        message = f": {row['message']}" if row["message"] and row["ratio"] is None else ""
        name = NAMES.get(row["kind"], row["kind"].replace("_", " "))
        commits = f"{row['head_sha'][:9]}{baseline}"
        typer.echo(f"  {name}: {cell} on {row['device']}{ratio} at {commits}{message}")
        if row["kind"] != "faster":
            typer.echo(f"    {row['replay']}\n    {row['url']}")
    hidden = len(report["rows"]) + report["left_out"] - ROWS_SHOWN
    if hidden > 0:
        typer.echo(f"  and {hidden} more: {report['url']}")
