"""Commands that ask a running server: submit, status, cancel, retry, triage, repository add.

Exit codes, for CI:
0  every job ran, every result is ok (or unsupported, or skipped), and no commit submitted is confirmed to be slower.
1  a result is wrong, or a commit is confirmed to be slower than the one before it.
2  neither is so, but something could not be measured: no server answers, it refused the request, a job failed or was
   cancelled, a build failed, a variant crashed, timed out or ran out of memory, or the wait was cut short.
"""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from warpwatch import git
from warpwatch.cli import app, plans
from warpwatch.cli.client import ApiError, Client
from warpwatch.settings import SettingError, load_settings

FINE = {"ok", "unsupported", "skipped"}
ENDED = {"done", "failed", "cancelled"}
POLL_SECONDS = 0.5
FAILURES_SHOWN = 20
console = Console(stderr=True, highlight=False)
repository_app = typer.Typer(no_args_is_help=True, help="Repositories that the server measures.")
app.add_typer(repository_app, name="repository")


@contextmanager
def _client() -> Iterator[Client]:
    """A client of the server in the settings; what it cannot do ends the command with exit code 2."""
    try:
        yield Client(load_settings().server_url)
    except (ApiError, SettingError, git.GitError) as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        console.print("not waiting any longer; the jobs go on: `warpwatch status`, `warpwatch cancel`")
        raise typer.Exit(2) from None


@app.command()
def submit(
    commit: str = typer.Option(..., help="A commit, branch or tag, or a range A..B."),
    repository: str | None = typer.Option(None, help="By default the one you stand in, or the only one."),
    base: str | None = typer.Option(None, help="For kind compare: the commit to measure beside."),
    kinds: list[str] = typer.Option(["check,bench"], help="check, bench, profile, compare; separated by commas."),
    operators: list[str] = typer.Option([], help="Separated by commas; all by default."),
    variants: list[str] = typer.Option([], help="Separated by commas; all by default."),
    cases: list[str] = typer.Option([], help="A case's key; give the option once for each."),
    suite: str = typer.Option("quick", help="Which cases, unless --cases names them."),
    device: str = typer.Option("all", help="A device's key, or cpu, cuda or all."),
    priority: int = typer.Option(0, help="-10 to 10; higher runs earlier."),
    seed: int = typer.Option(0, help="Seed of the inputs."),
    profile: str | None = typer.Option(None, help=plans.HELP),
    counters: bool = typer.Option(False, help=plans.COUNTERS_HELP),
    sanitize: str | None = typer.Option(None, help=plans.SANITIZE_HELP),
    skip_unchanged: bool = typer.Option(False, help="Leave out operators whose sources were measured at an earlier commit."),
    idempotency_key: str | None = typer.Option(None, help="The same key twice is one submission."),
    wait: bool = typer.Option(False, help="Follow it to its end; exit 0 fine, 1 wrong or slower, 2 could not run."),
    timeout: float | None = typer.Option(None, help="Seconds to wait at most."),
    as_json: bool = typer.Option(False, "--json", help="Print the submission as JSON."),
) -> None:
    """Submit jobs to the server: commits × kinds × operators × devices."""
    with _client() as client:
        name, here = _choose_repository(client, repository)
        request = {
            "repository": name, "commits": _resolve(here, commit), "base": _resolve(here, base) if base else None,
            "kinds": _split(kinds), "operators": _split(operators), "variants": _split(variants), "cases": cases,
            "suite": suite, "device": device, "priority": priority, "seed": seed,
            "profile": plans.profile_plan(profile, counters), "sanitize": sanitize,
            "skip_unchanged": skip_unchanged,
        }  # fmt: skip
        answer = client.post("/submissions", request, idempotency_key)
        console.print(f"submission {answer['id']}: {sum(answer['counts'].values())} jobs, {client.url}/submissions/{answer['id']}")
        if wait:
            _report(client, _follow(client, answer["id"], timeout), as_json)
        elif as_json:
            typer.echo(json.dumps(answer))


@app.command()
def status(
    submission: int | None = typer.Argument(None, help="By default the newest one."),
    wait: bool = typer.Option(False, help="Follow it to its end."),
    timeout: float | None = typer.Option(None, help="Seconds to wait at most."),
    as_json: bool = typer.Option(False, "--json", help="Print the submission as JSON."),
) -> None:
    """Say how a submission fares. Exit codes as of `submit --wait`; 0 while nothing is wrong yet."""
    with _client() as client:
        number = submission if submission is not None else _newest(client)
        row = _follow(client, number, timeout) if wait else client.get(f"/submissions/{number}")
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
) -> None:
    """Say what became of a regression or improvement."""
    with _client() as client:
        body = {"state": state, "note": note, "author": author or getpass.getuser()}
        answer = client.post(f"/regressions/{regression}/triage", body)
        typer.echo(f"regression {regression} is {answer['regression']['state']}")


@repository_app.command("add")
def add_repository(name: str, url: str = typer.Argument(..., help="A path on the server, or a URL it can reach.")) -> None:
    """Register a repository."""
    with _client() as client:
        local = Path(url)
        answer = client.post("/repositories", {"name": name, "url": str(local.absolute()) if local.is_dir() else url})
        typer.echo(f"repository {answer['name']} at {answer['url']}")


@repository_app.command("list")
def list_repositories() -> None:
    """List registered repositories."""
    with _client() as client:
        for row in client.get("/repositories")["items"]:
            typer.echo(f"{row['name']}\t{row['url']}\t{row['commits']} commits")


def _split(values: list[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _choose_repository(client: Client, name: str | None) -> tuple[str, Path | None]:
    """The repository meant, and the checkout we stand in when it is that repository's own."""
    rows = client.get("/repositories")["items"]
    try:
        here = Path(git.git("rev-parse", "--show-toplevel").strip())
    except git.GitError:
        here = None
    ours = [row["name"] for row in rows if here is not None and row["url"] == str(here)]
    if name is None:
        candidates = ours or [row["name"] for row in rows]
        if len(candidates) != 1:
            known = ", ".join(row["name"] for row in rows) or "none; add one with `warpwatch repository add NAME URL`"
            raise ApiError(f"say which repository with --repository; registered are: {known}")
        name = str(candidates[0])
    return name, here if name in ours else None


def _resolve(here: Path | None, ref: str) -> str:
    """In the repository's own checkout a ref means what it means here, HEAD~2 included; elsewhere the server finds it."""
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


def _follow(client: Client, number: int, timeout: float | None) -> dict[str, Any]:
    """The submission once its jobs have ended and every suspicion about its commits is decided."""
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
                pending = client.get(f"/submissions/{number}/verdicts")["pending"]
                if not pending:
                    return row
                progress.update(bar, note=f"{note}; {pending} verdicts pending")
            if deadline is not None and time.monotonic() > deadline:
                raise ApiError(f"submission {number} has not ended after {timeout:g} s; the jobs go on")
            time.sleep(POLL_SECONDS)


def _report(client: Client, row: dict[str, Any], as_json: bool) -> None:
    """Print how it went and exit accordingly."""
    changes = client.get(f"/submissions/{row['id']}/verdicts")["regressions"]
    slower = [change for change in changes if change["direction"] == "slower" and change["state"] not in ("accepted", "invalid")]
    code = exit_code(row, len(slower))
    if as_json:
        typer.echo(json.dumps({**row, "regressions": changes, "exit_code": code}))
    else:
        results = ", ".join(f"{count} {status}" for status, count in sorted(row["results"].items())) or "no results"
        typer.echo(f"submission {row['id']} {row['state']}: {results}")
        for change in changes:
            typer.echo(
                f"  {change['direction']}: {change['operator']} on {change['device_key']} × {change['ratio']:.3f} since "
                f"{change['head_sha'][:9]} {change['head_subject']}; {client.url}/regressions/{change['id']}"
            )
        if code:
            _show_failures(client, row["id"])
    raise typer.Exit(code)


def exit_code(row: dict[str, Any], slower: int) -> int:
    """0 fine, 1 wrong or slower, 2 could not run; see the top of this module."""
    if row["results"].get("wrong") or slower:
        return 1
    could_not_run = set(row["results"]) - FINE or row["counts"].get("failed") or row["counts"].get("cancelled")
    return 2 if could_not_run else 0


def _show_failures(client: Client, number: int) -> None:
    """The first results that are not fine, with what to run to see each again."""
    shown = 0
    for job in client.get("/jobs", submission=number, limit=200)["items"]:
        detail = client.get(f"/jobs/{job['id']}")
        faults = [result for result in detail["results"] if result["status"] not in FINE]
        if job["state"] in ("failed", "cancelled"):
            typer.echo(
                f"  job {job['id']} {job['state']}: {job['kind']} {job['operator']} at {job['commit_sha'][:9]}: {job['message']}"
            )
        for fault in faults:
            typer.echo(
                f"  {fault['status']}: {job['operator']} {fault['variant']} {fault['case']} at {job['commit_sha'][:9]}: {fault['message']}"
            )
        if faults:
            typer.echo(f"    {detail['replay']}")
        shown += len(faults)
        if shown >= FAILURES_SHOWN:
            typer.echo(f"  and more: {client.url}/submissions/{number}")
            return


def _change(verb: str, number: int, is_job: bool) -> None:
    kind = "job" if is_job else "submission"
    with _client() as client:
        answer = client.post(f"/{kind}s/{number}/{verb}")
        typer.echo(f"{kind} {number} is {answer['job']['state'] if is_job else answer['state']}")
