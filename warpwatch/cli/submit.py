"""Commands that need a running server: submit, status, cancel, retry, triage.

Exit codes, for CI:
0  Every job ran, every result is ok, unsupported or skipped, and no slow-down is confirmed. Inconclusive results and
   environment mismatches do not fail.
1  A result is wrong, or a slow-down is confirmed.
2  Neither of these, but something could not run: no server, a rejected request, a failed or cancelled job, a failed
   build, a crash, a time-out, out of memory, or the wait ended early. Also if a case could not tell a slow-down of the
   size that --require-detectable names.
"""

from __future__ import annotations

import getpass
import json
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import typer

from warpwatch import git
from warpwatch.cli import plans
from warpwatch.cli.app import app
from warpwatch.cli.client import ApiError, Client, asking, console, submission_bars
from warpwatch.cli.findings import Findings, describe_plan, show_findings
from warpwatch.cli.repository import choose_repository
from warpwatch.contract.priorities import AWAITED, ORDINARY

ENDED = {"done", "failed", "cancelled"}
POLL_SECONDS = 0.5
NOTE_SECONDS = 5.0
"""How often the place in line and the expected end are asked for."""
SAY_SECONDS = 60.0
"""How often a line is printed where nobody sees the bar."""
RELATIVE = ("merge-base", "parent")
"""Baselines that the server resolves: where the commit left the branch, and its parent."""


@app.command()
def submit(
    commit: str = typer.Option("HEAD", help="A commit, branch or tag, or a range A..B, which excludes A."),
    repository: str | None = typer.Option(None, help="Default: the repository of the current folder, or the only one."),
    base: str | None = typer.Option(None, help="Baseline for A/B runs: a commit, merge-base or parent."),
    branch: str | None = typer.Option(None, help="For --base merge-base. Default: the watched branch."),
    kinds: list[str] = typer.Option(["check,bench"], help="check, bench, profile, compare (A/B); separated by commas."),
    operators: list[str] = typer.Option([], help="Separated by commas. Default: all."),
    variants: list[str] = typer.Option([], help="Separated by commas. Default: all."),
    cases: list[str] = typer.Option([], help="Key of a case; repeat the option for several cases."),
    suite: str = typer.Option("quick", help="Suite of cases, unless --cases is given."),
    case_limit: int | None = typer.Option(None, min=1, help="Only the first so many cases of the suite."),
    device: str = typer.Option("all", help="Key of a device, or cpu, cuda or all."),
    priority: int | None = typer.Option(
        None, help=f"-10 to 10; higher runs first. Default: {AWAITED} with --base, {ORDINARY} without."
    ),
    seed: int = typer.Option(0, help="Seed of the inputs."),
    budget_ms: float | None = typer.Option(None, help=plans.BUDGET_HELP),
    profile: str | None = typer.Option(None, help=plans.HELP),
    counters: bool = typer.Option(False, help=plans.COUNTERS_HELP),
    sanitize: str | None = typer.Option(None, help=plans.SANITIZE_HELP),
    toolchains: str | None = typer.Option(None, help=plans.TOOLCHAINS_HELP),
    measure_all: bool = typer.Option(
        False,
        "--all/--skip-unchanged",
        "--no-skip-unchanged",
        help="Measure operators whose sources did not change since a measured commit, too.",
    ),
    dry_run: bool = typer.Option(False, help="Print the plan: commits, jobs and device minutes. Submit nothing."),
    idempotency_key: str | None = typer.Option(
        None, help="Repeating a request with the same key creates no second submission."
    ),
    require_detectable: float | None = typer.Option(None, help=plans.DETECTABLE_HELP, min=0.1, max=100),
    wait: bool = typer.Option(
        False, help="Wait for the result. Exit code: 0 success, 1 wrong or slower, 2 could not run or tell."
    ),
    timeout: float | None = typer.Option(None, help="Longest wait in seconds."),
    report: list[str] = typer.Option(
        [], help=f"FORMAT=FILE with {', '.join(plans.FORMS)}; implies --wait, may be repeated."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the submission as JSON."),
) -> None:
    """Print the plan and start a run: one job per commit, kind, operator and device."""
    reports = plans.parse_reports(report)
    with asking() as client:
        name, here = choose_repository(client, repository)
        request: dict[str, Any] = {
            "repository": name,
            "commits": _resolve(here, commit),
            "base": _resolve(here, base) if base and base not in RELATIVE else base,
            "branch": branch,
            "kinds": plans.split(kinds),
            "operators": plans.split(operators),
            "variants": plans.split(variants),
            "cases": cases,
            "suite": suite,
            "case_limit": case_limit,
            "device": device,
            "priority": priority,
            "seed": seed,
            "profile": asdict(plans.profile_plan(profile, counters)),
            "budget_ms": None if budget_ms is None else round(budget_ms),
            "sanitize": sanitize,
            "skip_unchanged": not measure_all,
            "toolchains": plans.split([toolchains or ""]),
        }
        if require_detectable is not None:
            request["require_detectable"] = require_detectable
        plan = client.post("/submissions/preview", request)
        for line in describe_plan(plan):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if dry_run:
            if as_json:
                typer.echo(json.dumps(plan))
            return
        # With a key the request can be sent again if the server goes away before it has answered.
        answer = client.post("/submissions", request, idempotency_key or f"cli-{uuid4()}")
        console.print(
            f"submission {answer['id']}: {sum(answer['counts'].values())} jobs, {client.url}/runs/{answer['id']}"
        )
        if wait or reports:
            _report(client, _follow(client, answer["id"], timeout, reports), as_json)
        elif as_json:
            typer.echo(json.dumps(answer))


@app.command()
def status(
    submission: int | None = typer.Argument(None, help="Default: the newest submission."),
    wait: bool = typer.Option(False, help="Wait until it is finished."),
    timeout: float | None = typer.Option(None, help="Longest wait in seconds."),
    report: list[str] = typer.Option([], help=f"FORMAT=FILE with {', '.join(plans.FORMS)}; may be repeated."),
    as_json: bool = typer.Option(False, "--json", help="Print the submission as JSON."),
) -> None:
    """Show the state of a submission. Exit codes as in `submit --wait`; 0 while nothing has failed."""
    reports = plans.parse_reports(report)
    with asking() as client:
        number = submission if submission is not None else _newest(client)
        row = _follow(client, number, timeout, reports) if wait else client.get(f"/submissions/{number}")
        if not wait:
            _write(client, number, reports)
        _report(client, row, as_json)


@app.command()
def cancel(number: int, job: bool = typer.Option(False, help="The number is a job, not a submission.")) -> None:
    """Cancel the remaining jobs of a submission, or one job."""
    _change("cancel", number, job)


@app.command()
def retry(number: int, job: bool = typer.Option(False, help="The number is a job, not a submission.")) -> None:
    """Queue the failed and cancelled jobs of a submission again, or one job."""
    _change("retry", number, job)


@app.command()
def triage(
    regression: int,
    state: str = typer.Argument(..., help="acknowledged, accepted, fixed, invalid or new."),
    note: str = typer.Option("", help="The reason."),
    author: str | None = typer.Option(None, help="Default: your user name."),
    assignee: str | None = typer.Option(None, help="The person in charge."),
    link: str | None = typer.Option(None, help="Discussion link: the address of an issue or a pull request."),
    due: str | None = typer.Option(None, help="Due date, such as 2026-03-31."),
) -> None:
    """Set the triage state of a regression or improvement."""
    with asking() as client:
        named = {"assignee": assignee, "link": link, "due_on": due}
        body = {"state": state, "note": note, "author": author or getpass.getuser()}
        body |= {name: value for name, value in named.items() if value}
        answer = client.post(f"/regressions/{regression}/triage", body)
        typer.echo(f"regression {regression} is {answer['regression']['state']}")


def _resolve(here: Path | None, ref: str) -> str:
    """Resolves a ref such as HEAD~2 in the local checkout of the repository; other refs are left to the server."""
    if here is None:
        return ref
    try:
        low, dots, high = ref.partition("..")
        return f"{git.resolve(here, low)}..{git.resolve(here, high)}" if dots else git.resolve(here, ref)
    except git.UnknownRefError:
        return ref


def _newest(client: Client) -> int:
    rows = client.get("/submissions", limit=1)["items"]
    if not rows:
        raise ApiError("no submissions yet; see `warpwatch submit --help`")
    return int(rows[0]["id"])


def _write(client: Client, number: int, reports: dict[str, Path]) -> None:
    """Writes the report on a submission in every requested format."""
    for form, file in reports.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(client.read(f"/submissions/{number}/{plans.FORMS[form]}"))


def _follow(client: Client, number: int, timeout: float | None, reports: dict[str, Path]) -> dict[str, Any]:
    """Waits until all jobs are finished and all verdicts on the commits are made; returns the submission.

    Findings are printed when they are decided, whatever is still measured. Where nobody sees the bar, a line a minute
    says how far it is. Reports are written even when the time-out ends the wait.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    told, shown, asked_at = time.monotonic(), Findings(), 0.0
    with submission_bars(console) as progress:
        bar = progress.add_task(f"submission {number}", total=None, note="")
        ended, note = -1, ""
        while True:
            row: dict[str, Any] = client.get(f"/submissions/{number}")
            before, ended = ended, sum(count for state, count in row["counts"].items() if state in ENDED)
            progress.update(bar, total=sum(row["counts"].values()), completed=ended, note=note)
            if row["state"] in ENDED or ended not in (before, 0):
                report = client.get(f"/submissions/{number}/report")
                for line in shown.new(report):
                    console.print(line, markup=False, highlight=False, soft_wrap=True)
                if row["state"] in ENDED and not report["pending"]:
                    _write(client, number, reports)
                    return row
            if time.monotonic() - asked_at > NOTE_SECONDS:
                asked_at, note = time.monotonic(), _describe(client, number, row)
            if not console.is_terminal and time.monotonic() - told > SAY_SECONDS:
                told = time.monotonic()
                console.print(f"submission {number}: {note}", markup=False, highlight=False, soft_wrap=True)
            if deadline is not None and time.monotonic() > deadline:
                _write(client, number, reports)
                raise ApiError(f"submission {number} is not finished after {timeout:g} s; the jobs continue")
            time.sleep(POLL_SECONDS)


def _describe(client: Client, number: int, row: dict[str, Any]) -> str:
    """How far a submission is: jobs, its place in line, its expected end, and the verdicts that are left."""
    if row["state"] in ENDED:
        return f"all jobs have ended, {client.get(f'/submissions/{number}/report')['pending']} verdicts left"
    place = client.get(f"/submissions/{number}/progress")
    parts = [f"{place['ended']} of {place['total']} jobs have ended"]
    if not place["running"] and place["ahead"] is not None:
        jobs = "job" if place["ahead"] == 1 else "jobs"
        parts.append(f"{place['ahead']} {jobs} before it in line" if place["ahead"] else "next in line")
    if place["expected_end"] is not None:
        parts.append(f"expected end {datetime.fromisoformat(place['expected_end']).astimezone():%H:%M}")
    elif place["ahead"] is not None:
        parts.append("no expected end: its device has no worker, or a long line")
    return ", ".join(parts)


def _report(client: Client, row: dict[str, Any], as_json: bool) -> None:
    """Prints the outcome and exits with the code of the report."""
    report = client.get(f"/submissions/{row['id']}/report")
    if as_json:
        regressions = client.get(f"/submissions/{row['id']}/verdicts")["regressions"]
        typer.echo(json.dumps({**row, "regressions": regressions, "report": report, "exit_code": report["exit_code"]}))
    else:
        results = ", ".join(f"{count} {status}" for status, count in sorted(row["results"].items())) or "no results"
        typer.echo(f"submission {row['id']} {row['state']}: {results}")
        typer.echo(f"  {report['summary']}")
        typer.echo(f"  {report['sensitivity']['summary']}")
        show_findings(report)
    raise typer.Exit(report["exit_code"])


def _change(verb: str, number: int, is_job: bool) -> None:
    kind = "job" if is_job else "submission"
    with asking() as client:
        answer = client.post(f"/{kind}s/{number}/{verb}")
        typer.echo(f"{kind} {number} is {answer['job']['state'] if is_job else answer['state']}")
