"""Commands that ask a running server: submit, status, cancel, retry, triage.

Exit codes, for CI:
0  every job ran, every result is ok (or unsupported, or skipped), and nothing is confirmed to be slower. What is
   unsure, and what two environments make incomparable, fails nothing.
1  a result is wrong, or something is confirmed to be slower than before.
2  neither is so, but something could not be measured: no server answers, it refused the request, a job failed or was
   cancelled, a build failed, a variant crashed, timed out or ran out of memory, or the wait was cut short.
"""

from __future__ import annotations

import getpass
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from warpwatch import git
from warpwatch.cli import app, plans
from warpwatch.cli.asking import asking, console
from warpwatch.cli.client import ApiError, Client
from warpwatch.cli.repository import choose_repository

ENDED = {"done", "failed", "cancelled"}
POLL_SECONDS = 0.5
ROWS_SHOWN = 20
RELATIVE = ("merge-base", "parent")
"""Bases that the server finds: where the commit left the branch, and the commit before it."""
FORMS = {
    "json": "report",
    "junit": "report.junit.xml",
    "markdown": "report.md",
    "sarif": "report.sarif",
    "github": "report.github.json",
}
"""What --report writes, and where the server has it."""


@app.command()
def submit(
    commit: str = typer.Option("HEAD", help="A commit, branch or tag, or a range A..B."),
    repository: str | None = typer.Option(None, help="By default the one you stand in, or the only one."),
    base: str | None = typer.Option(None, help="Hold the commit against another: a commit, merge-base or parent."),
    branch: str | None = typer.Option(None, help="For --base merge-base; by default the branch that is watched."),
    kinds: list[str] = typer.Option(["check,bench"], help="check, bench, profile, compare; separated by commas."),
    operators: list[str] = typer.Option([], help="Separated by commas; all by default."),
    variants: list[str] = typer.Option([], help="Separated by commas; all by default."),
    cases: list[str] = typer.Option([], help="A case's key; give the option once for each."),
    suite: str = typer.Option("quick", help="Which cases, unless --cases names them."),
    device: str = typer.Option("all", help="A device's key, or cpu, cuda or all."),
    priority: int = typer.Option(0, help="-10 to 10; higher runs earlier."),
    seed: int = typer.Option(0, help="Seed of the inputs."),
    budget_ms: float | None = typer.Option(None, help=plans.BUDGET_HELP),
    profile: str | None = typer.Option(None, help=plans.HELP),
    counters: bool = typer.Option(False, help=plans.COUNTERS_HELP),
    sanitize: str | None = typer.Option(None, help=plans.SANITIZE_HELP),
    skip_unchanged: bool = typer.Option(
        False, help="Leave out operators whose sources were measured at an earlier commit."
    ),
    idempotency_key: str | None = typer.Option(None, help="The same key twice is one submission."),
    wait: bool = typer.Option(False, help="Follow it to its end; exit 0 fine, 1 wrong or slower, 2 could not run."),
    timeout: float | None = typer.Option(None, help="Seconds to wait at most."),
    report: list[str] = typer.Option(
        [], help=f"FORM=FILE, for {', '.join(FORMS)}; waits, and may be given several times."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the submission as JSON."),
) -> None:
    """Submit jobs to the server: commits × kinds × operators × devices."""
    reports = _reports(report)
    with asking() as client:
        name, here = choose_repository(client, repository)
        request = {
            "repository": name,
            "commits": _resolve(here, commit),
            "base": _resolve(here, base) if base and base not in RELATIVE else base,
            "branch": branch,
            "kinds": plans.split(kinds),
            "operators": plans.split(operators),
            "variants": plans.split(variants),
            "cases": cases,
            "suite": suite,
            "device": device,
            "priority": priority,
            "seed": seed,
            "profile": asdict(plans.profile_plan(profile, counters)),
            "budget_ms": None if budget_ms is None else round(budget_ms),
            "sanitize": sanitize,
            "skip_unchanged": skip_unchanged,
        }
        answer = client.post("/submissions", request, idempotency_key)
        console.print(
            f"submission {answer['id']}: {sum(answer['counts'].values())} jobs, {client.url}/submissions/{answer['id']}"
        )
        if wait or reports:
            _report(client, _follow(client, answer["id"], timeout, reports), as_json)
        elif as_json:
            typer.echo(json.dumps(answer))


@app.command()
def status(
    submission: int | None = typer.Argument(None, help="By default the newest one."),
    wait: bool = typer.Option(False, help="Follow it to its end."),
    timeout: float | None = typer.Option(None, help="Seconds to wait at most."),
    report: list[str] = typer.Option([], help=f"FORM=FILE, for {', '.join(FORMS)}; may be given several times."),
    as_json: bool = typer.Option(False, "--json", help="Print the submission as JSON."),
) -> None:
    """Say how a submission fares. Exit codes as of `submit --wait`; 0 while nothing is wrong yet."""
    reports = _reports(report)
    with asking() as client:
        number = submission if submission is not None else _newest(client)
        row = _follow(client, number, timeout, reports) if wait else client.get(f"/submissions/{number}")
        if not wait:
            _write(client, number, reports)
        _report(client, row, as_json)


@app.command()
def cancel(number: int, job: bool = typer.Option(False, help="The number is a job's, not a submission's.")) -> None:
    """Cancel a submission's jobs, or one job."""
    _change("cancel", number, job)


@app.command()
def retry(number: int, job: bool = typer.Option(False, help="The number is a job's, not a submission's.")) -> None:
    """Put a submission's failed and cancelled jobs, or one job, back into the queue."""
    _change("retry", number, job)


@app.command()
def triage(
    regression: int,
    state: str = typer.Argument(..., help="acknowledged, accepted, fixed, invalid or new."),
    note: str = typer.Option("", help="Why."),
    author: str | None = typer.Option(None, help="By default your user name."),
    assignee: str | None = typer.Option(None, help="Who looks after it."),
    link: str | None = typer.Option(None, help="Where it is talked about: the address of an issue or a pull request."),
    due: str | None = typer.Option(None, help="A day, such as 2026-03-31."),
) -> None:
    """Say what became of a regression or improvement."""
    with asking() as client:
        named = {"assignee": assignee, "link": link, "due_on": due}
        body = {"state": state, "note": note, "author": author or getpass.getuser()}
        body |= {name: value for name, value in named.items() if value}
        answer = client.post(f"/regressions/{regression}/triage", body)
        typer.echo(f"regression {regression} is {answer['regression']['state']}")


def _resolve(here: Path | None, ref: str) -> str:
    """In the repository's own checkout git resolves a ref here, HEAD~2 included; elsewhere the server does."""
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
        raise ApiError("nothing was submitted yet; see `warpwatch submit --help`")
    return int(rows[0]["id"])


def _reports(wanted: list[str]) -> dict[str, Path]:
    """Form → file."""
    reports = {}
    for text in wanted:
        form, separator, file = text.partition("=")
        if form not in FORMS or not separator or not file:
            raise typer.BadParameter(f"{text!r} is not FORM=FILE with one of {', '.join(FORMS)}", param_hint="--report")
        reports[form] = Path(file)
    return reports


def _write(client: Client, number: int, reports: dict[str, Path]) -> None:
    """Write the report on a submission in every form that was asked for."""
    for form, file in reports.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(client.read(f"/submissions/{number}/{FORMS[form]}"))


def _follow(client: Client, number: int, timeout: float | None, reports: dict[str, Path]) -> dict[str, Any]:
    """The submission once its jobs have ended and every suspicion about its commits is decided.

    Reports are written in any case.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(f"submission {number}", total=None, note="")
        while True:
            row: dict[str, Any] = client.get(f"/submissions/{number}")
            ended = sum(count for state, count in row["counts"].items() if state in ENDED)
            note = ", ".join(f"{count} {status}" for status, count in sorted(row["results"].items()))
            progress.update(bar, total=sum(row["counts"].values()), completed=ended, note=note)
            if row["state"] in ENDED:
                pending = client.get(f"/submissions/{number}/report")["pending"]
                if not pending:
                    _write(client, number, reports)
                    return row
                progress.update(bar, note=f"{note}; {pending} verdicts pending")
            if deadline is not None and time.monotonic() > deadline:
                _write(client, number, reports)
                raise ApiError(f"submission {number} has not ended after {timeout:g} s; the jobs go on")
            time.sleep(POLL_SECONDS)


def _report(client: Client, row: dict[str, Any], as_json: bool) -> None:
    """Print how it went and exit accordingly."""
    report = client.get(f"/submissions/{row['id']}/report")
    if as_json:
        regressions = client.get(f"/submissions/{row['id']}/verdicts")["regressions"]
        typer.echo(json.dumps({**row, "regressions": regressions, "report": report, "exit_code": report["exit_code"]}))
    else:
        results = ", ".join(f"{count} {status}" for status, count in sorted(row["results"].items())) or "no results"
        typer.echo(f"submission {row['id']} {row['state']}: {results}")
        typer.echo(f"  {report['summary']}")
        _show(report)
    raise typer.Exit(report["exit_code"])


def _show(report: dict[str, Any]) -> None:
    """The worst of what matters, with what to run to see each again."""
    for row in report["rows"][:ROWS_SHOWN]:
        cell = " ".join(part for part in (row["operator"], row["variant"], row["case"]) if part)
        ratio = f" × {row['ratio']:.3f}" if row["ratio"] is not None else ""
        against = f" against {row['base_sha'][:9]}" if row["base_sha"] else ""
        message = f": {row['message']}" if row["message"] and row["ratio"] is None else ""
        kind, commit = row["kind"].replace("_", " "), row["head_sha"][:9]
        typer.echo(f"  {kind}: {cell} on {row['device']}{ratio} at {commit}{against}{message}")
        if row["kind"] != "faster":
            typer.echo(f"    {row['replay']}\n    {row['url']}")
    left = len(report["rows"]) + report["left_out"] - ROWS_SHOWN
    if left > 0:
        typer.echo(f"  and {left} more: {report['url']}")


def _change(verb: str, number: int, is_job: bool) -> None:
    kind = "job" if is_job else "submission"
    with asking() as client:
        answer = client.post(f"/{kind}s/{number}/{verb}")
        typer.echo(f"{kind} {number} is {answer['job']['state'] if is_job else answer['state']}")
