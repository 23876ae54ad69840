"""Prints what a submission found."""

from __future__ import annotations

from typing import Any

import typer

ROWS_SHOWN = 20
NAMES = {"unsure": "inconclusive"}
"""Shown instead of the stored kind of a finding."""
OF_ALL_CASES = {"build_failed": "did not build", "missing_dependency": "misses a dependency"}
"""What a variant has on all its cases for one reason, so that it is printed once."""


def show_findings(report: dict[str, Any]) -> None:
    """Prints the worst findings of a report of the server, with their reproduce commands."""
    groups: dict[object, list[dict[str, Any]]] = {}
    for number, row in enumerate(report["rows"]):
        place = tuple(row[name] for name in ("kind", "operator", "variant", "device", "head_sha", "message"))
        groups.setdefault(place if row["status"] in OF_ALL_CASES else number, []).append(row)
    for rows in list(groups.values())[:ROWS_SHOWN]:
        row, count = rows[0], len(rows)
        case = row["case"] if count == 1 else f"({count} cases)"
        cell = " ".join(part for part in (row["operator"], row["variant"], case) if part)
        ratio = f" × {row['ratio']:.3f}" if row["ratio"] is not None else ""
        baseline = f" vs {row['base_sha'][:9]}" if row["base_sha"] else ""
        message = f": {row['message']}" if row["message"] and row["ratio"] is None else ""
        name = OF_ALL_CASES.get(row["status"]) or NAMES.get(row["kind"], row["kind"].replace("_", " "))
        commits = f"{row['head_sha'][:9]}{baseline}"
        typer.echo(f"  {name}: {cell} on {row['device']}{ratio} at {commits}{message}")
        if row["kind"] != "faster":
            typer.echo(f"    {row['replay']}\n    {row['url']}")
    hidden = len(groups) + report["left_out"] - ROWS_SHOWN
    if hidden > 0:
        typer.echo(f"  and {hidden} more: {report['url']}")
