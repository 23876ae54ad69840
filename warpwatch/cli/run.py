"""`warpwatch run`: measures without server, database or network, and writes a results file."""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from warpwatch import __version__, git
from warpwatch.cli import app, plans
from warpwatch.project import ProjectError
from warpwatch.settings import SettingError, Settings, load_settings

if TYPE_CHECKING:
    from warpwatch.contract.outcome import Finding, Order, Outcome
    from warpwatch.worker.bundle import BundleWriter
    from warpwatch.worker.checkout import Tools

KINDS = ("check", "bench", "profile")
INTERRUPTED = "interrupted"
_FINE = ("ok", "unsupported", "skipped")
"""Statuses that are no fault of the code measured."""
console = Console()


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the command line asks for; None means all."""

    operators: list[str] | None
    kinds: list[str]
    suite: str
    variants: list[str] | None
    cases: list[str] | None
    traces: int
    profile: dict[str, int | bool]
    seed: int
    sanitize: str | None


@app.command()
def run(
    commits: str = typer.Option(..., help="One commit, or a range A..B (A left out)."),
    output: Path = typer.Option(..., help="Results file to write, usually named .wwb."),
    repository: str = typer.Option(".", help="Checkout or address of the repository."),
    operators: str | None = typer.Option(None, help="Operators, separated by commas; all by default."),
    suite: str = typer.Option("quick", help="quick or full."),
    kinds: str = typer.Option(",".join(KINDS), help="What to do, separated by commas."),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1 …; auto takes the first GPU if there is one."),
    variants: str | None = typer.Option(None, help="Variants, separated by commas; all by default."),
    cases: str | None = typer.Option(None, help="Case keys, separated by blanks; overrides the suite."),
    traces: int = typer.Option(
        1000, min=0, help="Keep at most so many traces. Profiles take the first case that was chosen."
    ),
    profile: str | None = typer.Option(None, help=plans.HELP),
    counters: bool = typer.Option(False, help=plans.COUNTERS_HELP),
    seed: int = typer.Option(0, help="Seed of the inputs."),
    sanitize: str | None = typer.Option(None, help=plans.SANITIZE_HELP),
) -> None:
    """Measure commits here and now: needs git, torch and a compiler, but no server, database or network."""
    from warpwatch.worker.devices import choose_device
    from warpwatch.worker.reporter import CannotRunError

    plan = plans.profile_plan(profile, counters)
    wish = RunRequest(
        _words(operators),
        _words(kinds) or list(KINDS),
        suite,
        _words(variants),
        cases.split() if cases else None,
        traces,
        plan,
        seed,
        sanitize,
    )
    try:
        unknown = [kind for kind in wish.kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"there is no kind {unknown[0]!r}; choose from {', '.join(KINDS)}")
        plans.expect_sanitizer(sanitize, wish.kinds)
        raise typer.Exit(_run(load_settings(), wish, choose_device(device), repository, commits, output))
    except (git.GitError, ProjectError, SettingError, CannotRunError, ValueError, OSError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


def _run(settings: Settings, wish: RunRequest, device: str, repository: str, commits: str, output: Path) -> int:
    from warpwatch.worker.bundle import BundleWriter
    from warpwatch.worker.checkout import Host, Tools

    url, shas = _find_commits(settings, repository, commits)
    mirror = git.update_mirror(url, settings.home)
    infos = [git.describe(mirror, sha) for sha in shas]
    name = Path(url).name.removesuffix(".git") or "repository"
    tools = Tools(Host(settings, device))
    console.print(f"measuring {len(shas)} commit{'s' * (len(shas) != 1)} of {name} on {device}", highlight=False)
    try:
        with (
            BundleWriter(output, name, _address(url), infos, __version__) as bundle,
            _progress() as progress,
            _interruptible(progress),
        ):
            tally = _measure(wish, mirror, url, shas, tools, bundle, progress)
    finally:
        tools.close()
    return _summarise(tally, output)


def _find_commits(settings: Settings, repository: str, commits: str) -> tuple[str, list[str]]:
    """The repository's address and the commits. In a checkout the words mean what they mean there, HEAD above all."""
    if Path(repository).is_dir():
        root = Path(git.git("rev-parse", "--show-toplevel", cwd=Path(repository)).strip())
        url = str(root)
    else:
        root, url = git.update_mirror(repository, settings.home), repository
    shas = [sha for text in commits.split(",") for sha in git.resolve_range(root, text.strip())]
    return url, list(dict.fromkeys(shas))


def _address(url: str) -> str:
    """Where others find the repository: a checkout's origin, without any password in it, else what was given."""
    if not Path(url).is_dir():
        return url
    try:
        origin = git.git("config", "--get", "remote.origin.url", cwd=Path(url)).strip()
    except git.GitError:
        return url
    return re.sub(r"//[^/@]*@", "//", origin)


@dataclass(slots=True)
class Tally:
    """What came of it: statuses counted, and the jobs that could not run at all."""

    statuses: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    interrupted: bool = False


def _measure(
    wish: RunRequest,
    mirror: Path,
    url: str,
    shas: list[str],
    tools: Tools,
    bundle: BundleWriter,
    progress: _RunProgress,
) -> Tally:
    from warpwatch.worker.execution import execute
    from warpwatch.worker.reporter import CannotRunError, Stopped

    tally = Tally()
    known: dict[str, dict[str, list[str]]] = {}
    orders = [order for sha in shas for order in _orders(wish, mirror, url, sha, tally)]
    for number, order in enumerate(orders):
        progress.job(number, len(orders), f"{order.sha[:9]} {order.operator} {order.kind}")
        if order.kind == "profile" and bundle.traces >= wish.traces:
            continue
        folder = Path(tempfile.mkdtemp(prefix="warpwatch-traces-"))
        started = datetime.now(UTC)
        try:
            asked = replace(order, spec={**order.spec, "known": known.get(order.operator)})
            try:
                found: Outcome | None = execute(asked, tools, progress, folder)
            except Stopped as stopped:
                tally.interrupted, found = True, stopped.outcome
            if found is not None:
                outcome = _few_traces(found, wish.traces - bundle.traces)
                bundle.add(order, outcome, started, datetime.now(UTC))
                tally.statuses.update(str(finding.status) for finding in outcome.findings)
                known[order.operator] = _names(outcome.findings)
        except CannotRunError as error:
            tally.problems.append(f"{order.sha[:9]} {order.operator} {order.kind}: {error}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if tally.interrupted:
            break
    return tally


def _orders(wish: RunRequest, mirror: Path, url: str, sha: str, tally: Tally) -> Iterator[Order]:
    """Every job of one commit: one per operator and kind."""
    from warpwatch.contract.outcome import Order
    from warpwatch.worker.checkout import read_project

    try:
        project = read_project(mirror, sha)
    except ProjectError as error:
        tally.problems.append(f"{sha[:9]}: {error}")
        return
    spec: dict[str, Any] = {"suite": wish.suite, "variants": wish.variants, "cases": wish.cases, "seed": wish.seed}
    spec |= {"sanitize": wish.sanitize} if wish.sanitize else {}
    for operator in git.operator_names(mirror, sha, project.operators):
        if wish.operators is None or operator in wish.operators:
            for kind in wish.kinds:
                own = {"case_limit": 1, "profile": wish.profile} if kind == "profile" else {}
                yield Order(kind, url, sha, operator, spec | own)


def _few_traces(outcome: Outcome, left: int) -> Outcome:
    """The outcome with at most `left` of its traces, the first ones."""
    findings = []
    for finding in outcome.findings:
        if finding.profile is not None and finding.profile.path is not None:
            left -= 1
            if left < 0:
                finding = replace(finding, profile=replace(finding.profile, path=None))
        findings.append(finding)
    return replace(outcome, findings=findings)


def _names(findings: list[Finding]) -> dict[str, list[str]]:
    return {
        "variants": list(dict.fromkeys(finding.variant for finding in findings)),
        "cases": list(dict.fromkeys(finding.case for finding in findings)),
    }


def _summarise(tally: Tally, output: Path) -> int:
    """Says what came of it; 0 when all is well, 1 when something was found wrong, 2 when something could not run."""
    for problem in tally.problems:
        console.print(f"could not run: {problem}", style="red", markup=False, highlight=False, soft_wrap=True)
    counts = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in sorted(tally.statuses.items()))
    console.print(
        f"{output}: {counts or 'no results'}, {output.stat().st_size / 1e6:.2f} MB", highlight=False, soft_wrap=True
    )
    if tally.interrupted:
        console.print("interrupted; the file holds what was measured until then", style="yellow")
    if tally.problems or tally.interrupted or not tally.statuses:
        return 2
    return int(any(status not in _FINE for status in tally.statuses))


def _words(text: str | None) -> list[str] | None:
    return [word.strip() for word in text.split(",") if word.strip()] if text else None


class _RunProgress:
    """A reporter that draws: log lines above, a bar for the jobs and one for the current job below."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._jobs = progress.add_task("", total=None)
        self._steps = progress.add_task("", total=None)
        self.interrupted = False

    def job(self, number: int, total: int, text: str) -> None:
        self._progress.update(self._jobs, completed=number, total=total, description=text)

    def log(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, done: int, total: int, text: str) -> None:
        self._progress.update(self._steps, completed=done, total=total, description=text)

    def should_stop(self) -> str | None:
        return INTERRUPTED if self.interrupted else None


@contextmanager
def _progress() -> Iterator[_RunProgress]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield _RunProgress(progress)


@contextmanager
def _interruptible(progress: _RunProgress) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the current job; what was measured before is kept."""

    def interrupt(*_: object) -> None:
        progress.interrupted = True

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
