"""Prints what a submission found."""

from __future__ import annotations

from typing import Any

import typer

ROWS_SHOWN = 20
NAMES = {"unsure": "inconclusive", "blind": "could not tell"}
"""Shown instead of the stored kind of a finding."""
DECIDED = ("wrong", "failed", "not_run")
"""Kinds of findings that nothing measured later changes."""
OF_ALL_CASES = {"build_failed": "did not build", "missing_dependency": "misses a dependency"}
"""What a variant has on all its cases for one reason, so that it is printed once."""


def show_findings(report: dict[str, Any]) -> None:
    """Prints the worst findings of a report of the server, with their reproduce commands."""
    groups = _grouped(report)
    for rows in groups[:ROWS_SHOWN]:
        row = rows[0]
        typer.echo(f"  {_describe(rows)}")
        if row["kind"] != "faster":
            typer.echo(f"    {row['replay']}\n    {row['url']}")
    hidden = len(groups) + report["left_out"] - ROWS_SHOWN
    if hidden > 0:
        typer.echo(f"  and {hidden} more: {report['url']}")


class Findings:
    """Findings of a report that grows; each is told once. Those that a later comparison may still overrule are left
    for the end."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def new(self, report: dict[str, Any]) -> list[str]:
        """A line for each finding that was not told before."""
        lines = [_describe(rows) for rows in _grouped(report) if rows[0]["kind"] in DECIDED]
        fresh = [line for line in lines if line not in self._told][:ROWS_SHOWN]
        self._told.update(fresh)
        return fresh


def _grouped(report: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Rows by what is told once: a variant that did not build has a row for each of its cases."""
    groups: dict[object, list[dict[str, Any]]] = {}
    for number, row in enumerate(report["rows"]):
        place = tuple(row[name] for name in ("kind", "operator", "variant", "device", "head_sha", "message"))
        groups.setdefault(place if row["status"] in OF_ALL_CASES else number, []).append(row)
    return list(groups.values())


def _describe(rows: list[dict[str, Any]]) -> str:
    row, count = rows[0], len(rows)
    case = row["case"] if count == 1 else f"({count} cases)"
    cell = " ".join(part for part in (row["operator"], row["variant"], case) if part)
    ratio = f" × {row['ratio']:.3f}" if row["ratio"] is not None else ""
    baseline = f" vs {row['base_sha'][:9]}" if row["base_sha"] else ""
    is_told = row["message"] and (row["ratio"] is None or row["kind"] == "blind")
    message = f": {row['message']}" if is_told else ""
    name = OF_ALL_CASES.get(row["status"]) or NAMES.get(row["kind"], row["kind"].replace("_", " "))
    signal = row["statement"]["signal"] if row["ratio"] is not None else None
    name = f"{signal} {name}" if signal else name
    return f"{name}: {cell} on {row['device']}{ratio} at {row['head_sha'][:9]}{baseline}{message}"
