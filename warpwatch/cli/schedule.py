"""`warpwatch schedule …`: recurring runs."""

from __future__ import annotations

import json
from typing import Any

import typer

from warpwatch.cli.app import app
from warpwatch.cli.client import ApiError, Client, asking
from warpwatch.cli.repository import choose_repository
from warpwatch.contract.priorities import ORDINARY, SCHEDULED

schedule_app = typer.Typer(no_args_is_help=True, help="Recurring runs within budgets of device minutes.")
app.add_typer(schedule_app, name="schedule")
WHICH = typer.Argument(..., metavar="SCHEDULE", help="Number or name; see `warpwatch schedule list`.")


@schedule_app.command("list")
def list_schedules(
    repository: str | None = typer.Option(None, help="Only this repository."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List schedules with next run, budget used in the last 24 hours, and last outcome."""
    with asking() as client:
        rows = _all(client, repository)
        if as_json:
            typer.echo(json.dumps(rows))
        for row in [] if as_json else rows:
            typer.echo(_line(row))


@schedule_app.command("add")
def add_schedule(
    name: str,
    kind: str = typer.Argument(
        ..., help="suite: the newest commit; rerun: a measured commit again; backfill: unmeasured commits."
    ),
    repository: str | None = typer.Option(None, help="Default: the repository of the current folder, or the only one."),
    cron: str = typer.Option("0 2 * * *", help="minute hour day month weekday, in UTC."),
    budget: int = typer.Option(60, help="Device minutes per 24 hours, over all devices."),
    kinds: str = typer.Option("", help="check, bench, profile; separated by commas. Default: depends on the kind."),
    operators: str = typer.Option("", help="Separated by commas. Default: all."),
    suite: str = typer.Option("quick", help="Suite of cases."),
    device: str = typer.Option("all", help="Key of a device, or cpu, cuda or all."),
    priority: int = typer.Option(SCHEDULED, help=f"-10 to 10; higher runs first. Submissions have {ORDINARY} or more."),
    skip_unchanged: bool = typer.Option(False, help="Kind suite only: skip operators whose sources did not change."),
    disabled: bool = typer.Option(False, help="Add it disabled."),
) -> None:
    """Add a recurring run."""
    with asking() as client:
        chosen, _ = choose_repository(client, repository)
        body = {
            "repository": chosen,
            "name": name,
            "kind": kind,
            "cron": cron,
            "budget_minutes": budget,
            "kinds": _split(kinds),
            "operators": _split(operators),
            "suite": suite,
            "device": device,
            "priority": priority,
            "skip_unchanged": skip_unchanged,
            "enabled": not disabled,
        }
        typer.echo(_line(client.post("/schedules", body)))


@schedule_app.command("remove")
def remove_schedule(which: str = WHICH) -> None:
    """Remove a schedule. Its submissions stay."""
    with asking() as client:
        row = _find(client, which)
        client.delete(f"/schedules/{row['id']}")
        typer.echo(f"schedule {row['id']} {row['name']} is removed")


@schedule_app.command("enable")
def enable_schedule(which: str = WHICH) -> None:
    """Enable a schedule from its next due time."""
    _change(which, {"enabled": True})


@schedule_app.command("disable")
def disable_schedule(which: str = WHICH) -> None:
    """Disable a schedule."""
    _change(which, {"enabled": False})


@schedule_app.command("run")
def run_schedule(which: str = WHICH) -> None:
    """Run a schedule now, within its budget, and print the outcome."""
    with asking() as client:
        typer.echo(client.post(f"/schedules/{_find(client, which)['id']}/run")["message"])


def _change(which: str, body: dict[str, Any]) -> None:
    with asking() as client:
        typer.echo(_line(client.patch(f"/schedules/{_find(client, which)['id']}", body)))


def _all(client: Client, repository: str | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    before = None
    while True:
        page = client.get("/schedules", repository=repository, before=before, limit=200)
        rows += page["items"]
        before = page["next_before"]
        if before is None:
            return rows


def _find(client: Client, which: str) -> dict[str, Any]:
    rows = _all(client)
    matches = [row for row in rows if which in (str(row["id"]), row["name"])]
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join(f"{row['id']} ({row['repository']}: {row['name']})" for row in matches or rows)
    if matches:
        raise ApiError(f"several schedules are named {which!r}; use the number: {listed}")
    raise ApiError(f"no schedule {which!r}; choose from: {listed or 'none yet, see `warpwatch schedule add --help`'}")


def _line(row: dict[str, Any]) -> str:
    due = f"next {row['next_at'][:16].replace('T', ' ')} UTC" if row["next_at"] else "disabled"
    spent = f"{row['spent_minutes']:.1f} of {row['budget_minutes']} min"
    return "\t".join(
        [str(row["id"]), row["repository"], row["name"], row["kind"], row["cron"], due, spent, row["message"]]
    ).rstrip()


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
