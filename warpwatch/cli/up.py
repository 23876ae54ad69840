"""`warpwatch up`: everything on one machine, from nothing to a chart."""

from __future__ import annotations

import contextlib
import re
import signal
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID

from warpwatch import git
from warpwatch.cli.app import app
from warpwatch.cli.client import ApiError, Client, submission_bars
from warpwatch.cli.findings import describe_plan, show_findings
from warpwatch.cli.services import (
    EmbeddedDatabase,
    StartError,
    Supervisor,
    check_port,
    running_database,
    running_services,
)
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.spec import MAX_NAMES
from warpwatch.contract.words import NO_FAILURE
from warpwatch.project import FILE_NAME, ProjectError, parse_project
from warpwatch.settings import SettingError, Settings, load_settings

console = Console()
BUDGET_MS = 400
"""Half of what a variant and case usually get: whoever starts Warpwatch for the first time wants to see something soon.
"""
CASES = 2
"""Cases of each operator, for the same reason: most of the time goes into what torch.compile makes for each case."""
_COMPILERS = re.compile(r"compile|triton|load_inline")
"""Words of a file whose variants compile when they are first called, which takes seconds for each case."""
SAY_SECONDS = 60
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXAMPLE_FOLDERS = (
    Path(__file__).parents[1] / "bundled" / "example",
    Path(sysconfig.get_path("data")) / "share" / "warpwatch" / "example",
)
"""Where the example data lies in a checkout, and where the distribution `warpwatch-example` installs it."""


class InterruptedByUser(Exception):  # noqa: N818 - it is no error
    """Ctrl-C or SIGTERM: time to stop cleanly."""


class ServiceClient(Client):
    """Notices during an outage of the server that a service has ended for good."""

    def __init__(self, url: str, supervisor: Supervisor) -> None:
        super().__init__(url)
        self._supervisor = supervisor
        # This command has seen it start.
        self.has_answered = True

    def _wait(self) -> None:
        self._supervisor.check()
        super()._wait()


@dataclass(frozen=True, slots=True)
class Submitted:
    """One submission that is followed until it ended."""

    id: int
    title: str


@app.command()
def up(
    once: bool = typer.Option(
        False, help="Exit when the submitted jobs have ended: 0 only if all of them did what they should."
    ),
    commits: int = typer.Option(5, min=1, max=100, help="How many of the newest commits to measure."),
    suite: str = typer.Option("quick", help="Which cases."),
    case_limit: int = typer.Option(CASES, min=0, help="How many cases of the suite, of each operator; 0 means all."),
    example: bool = typer.Option(True, help="Import the history shipped with Warpwatch, labelled as example data."),
) -> None:
    """Start database, server and one worker per device; measure this checkout's newest commits."""
    from warpwatch.db.errors import EngineError
    from warpwatch.worker.reporter import CannotRunError

    try:
        settings = load_settings()
        check_port(settings)
        if once:
            # Who waits for the submitted jobs does not wait for trials of what they make suspicious.
            settings = replace(settings, trial_share=0.0)
        with _interruptible():
            raise typer.Exit(_run(settings, once, commits, suite, case_limit, example))
    except InterruptedByUser:
        console.print("stopped; the data is kept for the next start")
        if once:
            # Whoever waits for a verdict must not take a run that was cut short for a good one.
            raise typer.Exit(128 + signal.SIGINT) from None
    except (StartError, SettingError, ApiError, ProjectError, git.GitError, EngineError, CannotRunError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


def _run(settings: Settings, once: bool, commits: int, suite: str, case_limit: int, example: bool) -> int:
    from warpwatch.worker import levels
    from warpwatch.worker.devices import list_devices

    began = time.monotonic()
    devices = list_devices()
    for kind in sorted({device.partition(":")[0] for device in devices}):
        # Each worker would say the same in its log, and start again and again.
        levels.confinement(settings.home, None, isolation=settings.isolation, device_kind=kind)
    with running_database(settings) as database_url, running_services(settings, database_url, devices) as services:
        console.print(
            f"[bold]Warpwatch[/bold] serves [link]{settings.server_url}[/link] after {time.monotonic() - began:.1f} s",
            highlight=False,
        )
        own_database = [] if settings.database_url else [EmbeddedDatabase(settings.home)]
        supervisor = Supervisor(
            [*own_database, *services], lambda text: console.print(text, markup=False, highlight=False)
        )
        client = ServiceClient(settings.server_url, supervisor)
        # The checkout comes before the example, because pages show the repository that was registered first.
        checkout = _register_checkout(client)
        if checkout is None and once:
            raise StartError("--once measures the checkout that it is started in, and there is none here")
        if example:
            import_examples(settings, database_url)
        # Workers measure their device's ceilings before they register, once per environment.
        with console.status("workers are getting to know their devices …"):
            while sum(worker["state"] == "alive" for worker in client.get("/workers")["items"]) < len(devices):
                supervisor.check()
                time.sleep(0.2)
        submitted = _submit(client, checkout, commits, suite, case_limit) if checkout is not None else []
        if checkout is None:
            console.print("no git checkout here; add one with: warpwatch repository add NAME URL", highlight=False)
        elif case_limit:
            console.print(
                f"measuring the first {case_limit} cases of each operator; all of the suite, and edge sizes in checks: "
                f"[bold]warpwatch submit --kinds check,bench,profile --suite {suite}[/bold]",
                highlight=False,
            )
        counts = _follow(client, submitted, supervisor)
        verdict = _summarise(client, submitted, counts)
        if not once:
            console.print("measured; serving until Ctrl-C")
            while True:
                supervisor.check()
                time.sleep(1)
        return verdict


def import_examples(settings: Settings, database_url: str) -> None:
    """Real history of other machines; a second import of the same file changes nothing.

    Where a git bundle lies beside the results, pages show the source of each change.
    """
    from warpwatch.cli.results_files import import_file

    folder = next((folder for folder in EXAMPLE_FOLDERS if folder.is_dir()), None)
    if folder is None:
        console.print("no example data is installed; install it with: pip install 'warpwatch[embedded]'", markup=False)
        return
    for file in sorted(folder.glob("*.wwb"), key=lambda file: file.stat().st_size):
        name, history = f"example-{file.stem}", file.with_suffix(".bundle")
        has_history = history.is_file()
        if has_history:
            git.update_mirror(str(history), settings.home)
        # Inside a query, the exception would leave a broken connection, and a false word of an unreachable database.
        earlier = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        try:
            is_new = import_file(database_url, file, name, "example", str(history) if has_history else None)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        if is_new:
            console.print(f"imported example data as repository [bold]{name}[/bold]")
        if has_history:
            address = f"{settings.server_url}/regressions?repository={name}"
            console.print(f"its confirmed changes: [link]{address}[/link]", highlight=False)


def _register_checkout(client: Client) -> Path | None:
    """The root of the checkout we stand in, registered under its own name; None where there is no checkout."""
    try:
        root = Path(git.git("rev-parse", "--show-toplevel").strip())
    except git.GitError:
        return None
    client.post("/repositories", {"name": root.name, "url": str(root)})
    return root


def _submit(client: Client, root: Path, count: int, suite: str, case_limit: int) -> list[Submitted]:
    """check + bench + profile for the newest commits; what was asked for at an earlier start is not measured again."""
    shas = git.last_commits(root, "HEAD", count)
    operators = list(dict.fromkeys(name for sha in reversed(shas) for name in quickest_first(root, sha)))
    if not operators:
        return []
    request = {
        "repository": root.name,
        "commits": f"{shas[0]}^..{shas[-1]}",
        "kinds": ["check", "bench", "profile"],
        "operators": operators if len(operators) <= MAX_NAMES else [],
        "suite": suite,
        "case_limit": case_limit or None,
        "device": "all",
        "budget_ms": BUDGET_MS,
    }
    for line in describe_plan(client.post("/submissions/preview", request)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    key = f"up:{root.name}:{request['commits']}:{suite}:{case_limit}"
    answer = client.post("/submissions", request, idempotency_key=key)
    newest = f"{short_sha(shas[-1])} {git.describe(root, shas[-1]).subject[:50]}"
    title = newest if len(shas) == 1 else f"{len(shas)} commits to {newest}"
    return [Submitted(answer["id"], title)]


def quickest_first(root: Path, sha: str) -> list[str]:
    """The operators of a commit, first those that most likely give the first chart: whose file names compilers that
    run at the first call least often, and of them the shortest."""
    project = parse_project(git.read_file(root, sha, FILE_NAME))
    folder, names = project.operators, project.with_programs(git.operator_names(root, sha, project.operators))

    def effort(name: str) -> tuple[int, int]:
        text = git.read_file(root, sha, f"{folder.strip('/')}/{name}.py") or ""
        return len(_COMPILERS.findall(text)), len(text)

    return sorted(names, key=effort)


def _follow(client: Client, submitted: list[Submitted], supervisor: Supervisor) -> dict[int, dict[str, Any]]:
    """Draw a bar per commit, or where nobody sees them say a line a minute, until every submission has ended; the last
    state of each."""
    last: dict[int, dict[str, Any]] = {}
    said = time.monotonic()
    with submission_bars(console) as progress:
        bars: dict[int, TaskID] = {s.id: progress.add_task(s.title, total=None, note="") for s in submitted}
        while open_ids := [
            s.id for s in submitted if last.get(s.id, {}).get("state") not in ("done", "failed", "cancelled")
        ]:
            supervisor.check()
            for submission_id in open_ids:
                row = last[submission_id] = client.get(f"/submissions/{submission_id}")
                progress.update(
                    bars[submission_id],
                    total=sum(row["counts"].values()),
                    completed=_ended(row),
                    note=_note(row["results"]),
                )
            if not console.is_terminal and time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                jobs = sum(sum(row["counts"].values()) for row in last.values())
                console.print(f"{sum(map(_ended, last.values()))} of {jobs} jobs have ended", highlight=False)
            time.sleep(0.5)
    return last


def _ended(row: dict[str, Any]) -> int:
    return sum(count for state, count in row["counts"].items() if state not in ("queued", "running"))


def _note(results: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(results.items()) if count)


def _summarise(client: Client, submitted: list[Submitted], last: dict[int, dict[str, Any]]) -> int:
    """0 when every job ran and no result is a fault; names what is not so otherwise."""
    faults = 0
    for submission in submitted:
        row = last[submission.id]
        bad = {status: count for status, count in row["results"].items() if status not in NO_FAILURE and count}
        if bad or row["state"] != "done":
            faults += 1
            outcome = escape(f"{submission.title}: {_note(bad) or row['state']}")
            console.print(f"[red]{outcome}[/red] {client.url}/runs/{submission.id}", highlight=False)
            show_findings(client.get(f"/submissions/{submission.id}/report"))
    total = Counter[str]()
    for row in last.values():
        total.update(row["results"])
    console.print(f"results: {_note(total) or 'none, since nothing changed'}", highlight=False)
    return 1 if faults else 0


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into InterruptedByUser, and ignore more while everything is stopped in order."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise InterruptedByUser

    for number in _STOP_SIGNALS:
        signal.signal(number, interrupt)
    yield
