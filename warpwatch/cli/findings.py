"""Prints the plan of a submission before work begins, and its findings afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.written_numbers import change
from warpwatch.server.reports.formats import headline

ROWS_SHOWN = 20
NAMES = {"unsure": "inconclusive", "blind": "could not tell"}
"""Shown instead of the stored kind of a finding."""
DECIDED = ("wrong", "failed", "not_run")
"""Kinds of findings that nothing measured later changes."""
OF_ALL_CASES = {"build_failed": "did not build", "missing_dependency": "misses a dependency"}
"""What a variant has on all its cases for one reason, so that it is printed once."""
MOST_LINES = 5
"""Commits that are named for each reason to leave some out."""
REASONS = {
    "range_start": "before the range",
    "merged_branch": "of merged branches",
    "no_operator": "without operators",
    "unchanged": "unchanged",
    "requested": "measured before",
}


def show_findings(report: dict[str, Any]) -> None:
    """Prints the worst findings of a report of the server, with their reproduce commands."""
    groups = _grouped(report)
    for rows in groups[:ROWS_SHOWN]:
        row = rows[0]
        typer.echo(f"  {_describe(rows, _device_names(report))}")
        if row["kind"] not in ("fixed", "faster"):
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
        names = _device_names(report)
        lines = [_describe(rows, names) for rows in _grouped(report) if rows[0]["kind"] in DECIDED]
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


def _device_names(report: Mapping[str, Any]) -> Mapping[str, str]:
    """By key; none in a report of a server of the version before."""
    names: Mapping[str, str] = report.get("device_names", {})
    return names


def _describe(rows: list[dict[str, Any]], device_names: Mapping[str, str]) -> str:
    row, count = rows[0], len(rows)
    case = row["case"] if count == 1 else f"({count} cases)"
    cell = " ".join(part for part in (row["operator"], row["variant"], case) if part)
    ratio = f" {change(row['ratio'])}" if row["ratio"] is not None else ""
    baseline = f" vs {short_sha(row['base_sha'])}" if row["base_sha"] else ""
    is_told = row["message"] and (row["ratio"] is None or row["kind"] == "blind")
    message = f": {headline(row['message'])}" if is_told else ""
    kind = row["kind"] if row["kind"] != "fixed" or row["ratio"] is None else "slower"
    # How something failed, as pages name it.
    kind = row["status"] if kind in ("failed", "fixed") else kind
    name = OF_ALL_CASES.get(row["status"]) or NAMES.get(kind, kind.replace("_", " "))
    signal = row["statement"]["signal"] if row["ratio"] is not None else None
    name = f"{signal} {name}" if signal else name
    fixed = ""
    if row["kind"] == "fixed":
        name = f"{name}, fixed later"
        fixed = f", right again at {short_sha(row['right_at'] or row['fixed_by_sha'])}"
    device = device_names.get(row["device"], row["device"])
    return f"{name}{ratio}: {cell} on {device} at {short_sha(row['head_sha'])}{baseline}{fixed}{message}"


def describe_plan(plan: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the plan that POST /submissions/preview returns: jobs, devices, and the commits that are left out."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in plan["kinds"].items())
    operators, commits = plan["operators"], plan["commits"]
    where = f" at {_count(len(commits), 'commit')}, {_count(len(operators), 'operator')}" if commits else ""
    yield f"plan: {_count(plan['jobs'], 'job')}{f' ({kinds})' if kinds else ''}{where}"
    if plan["unchanged"]:
        since = sorted({sha for commit in commits for sha in commit["unchanged"].values()})
        held = f", whose results at {', '.join(short_sha(sha) for sha in since[:MOST_LINES])} count" if since else ""
        yield f"  {_count(plan['unchanged'], 'job')} skipped: operators unchanged{held}; --all measures them, too"
    for device in plan["devices"]:
        if device["jobs"]:
            yield f"  {device['name']}: {_count(device['jobs'], 'job')}, {_time(device)}"
    if len(commits) > 1:
        names = [f"{short_sha(commit['sha'])} ({commit['jobs']})" for commit in commits[:MOST_LINES]]
        yield f"  first: {', '.join(names)}{' …' if len(commits) > MOST_LINES else ''}"
    for group in plan["left_out"]:
        yield f"  left out: {_count(group['count'], 'commit')} {REASONS[group['reason']]}. {group['message']}"
        for commit in group["commits"][:MOST_LINES]:
            yield f"    {short_sha(commit['sha'])} {commit['subject']}"
        if group["count"] > MOST_LINES:
            yield f"    and {group['count'] - min(len(group['commits']), MOST_LINES)} more"


def _time(device: Mapping[str, Any]) -> str:
    waits = "" if device["is_served"] else "; no worker, so they wait until one starts"
    if device["minutes"] is None:
        return f"time unknown: these operators have not run there yet{waits}"
    rest = device["unknown_jobs"]
    unknown = f" and {_count(rest, 'job')} of unknown length" if rest else ""
    return f"about {device['minutes']:g} min{unknown}{waits}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
