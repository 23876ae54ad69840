"""`warpwatch run`: measures without server, database or network, and writes a results file."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from warpwatch import __version__, git
from warpwatch.cli import plans
from warpwatch.cli.app import app
from warpwatch.cli.progress import TerminalReporter, interruptible, run_progress
from warpwatch.cli.result_table import ResultTable
from warpwatch.contract.activities import RunTimes
from warpwatch.contract.rounds import ROUNDS
from warpwatch.contract.spec import USUAL_PLAN, JobRequest, JobSpec, KnownNames
from warpwatch.contract.words import NO_FAILURE, JobKind
from warpwatch.definitions import DefinitionsSource, newest_version, parse_source
from warpwatch.project import ProjectError
from warpwatch.server.reports.sensitivity import missed_text, summarize
from warpwatch.settings import SettingError, Settings, load_settings
from warpwatch.sources import Sources

if TYPE_CHECKING:
    from warpwatch.bundle import BundleWriter
    from warpwatch.contract.outcome import Comparison, Finding, Outcome
    from warpwatch.worker.tools import Tools

KINDS = ("check", "bench", "profile")
"""Kinds of jobs that run where --kinds is not given; compare needs --base."""
FILES_SHOWN = 5
"""Changed files that a note on the working tree names."""
console = Console()


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Request of the command line. operators: None means all operators. base: the commit that comparisons measure
    beside each of the other commits. required: slow-down in per cent that comparisons must find; None for any."""

    operators: list[str] | None
    kinds: list[JobKind]
    traces: int
    spec: JobSpec
    base: str | None = None
    definitions: DefinitionsSource | None = None
    required: float | None = None

    def spec_of(self, kind: JobKind) -> JobSpec:
        """The specification of one kind of job: without what means nothing to it; a profile takes the first case where
        neither cases nor a limit are named."""
        usual = 1 if kind == JobKind.PROFILE and self.spec.cases is None else None
        limit = usual if self.spec.case_limit is None else self.spec.case_limit or None
        spec = replace(self.spec, case_limit=limit)
        if kind not in (JobKind.PROFILE, JobKind.COMPARE):
            spec = replace(spec, profile=USUAL_PLAN)
        if kind == JobKind.COMPARE:
            return replace(spec, pairs=plans.pairs_of(spec))
        return replace(spec, rounds=None, stop=None, pairs=None, toolchains=None)


@app.command()
def run(
    commits: str = typer.Option(..., help="One commit, or a range A..B (A left out)."),
    output: Path = typer.Option(..., help="Results file to write, usually named .wwb."),
    repository: str = typer.Option(".", help="Checkout or address of the repository."),
    definitions: str | None = typer.Option(
        None, metavar="PATH_OR_URL[@REF]", help="Where the operators are defined, if not in the commits."
    ),
    operators: str | None = typer.Option(None, help="Operators, separated by commas; all by default."),
    suite: str = typer.Option("quick", help="quick or full."),
    kinds: str = typer.Option(",".join(KINDS), help="check, bench, profile, compare; separated by commas."),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1 …; auto takes the first GPU if there is one."),
    variants: list[str] = typer.Option([], help="Separated by commas; all by default."),
    cases: list[str] = typer.Option([], help="Case keys, separated by blanks; they replace the suite."),
    case_limit: int | None = typer.Option(
        None, min=0, help="Take so many cases of the suite; 0 means all, which is the default except for profiles."
    ),
    traces: int = typer.Option(1000, min=0, help="Keep at most so many traces."),
    profile: str | None = typer.Option(None, help=plans.HELP),
    counters: bool = typer.Option(False, help=plans.COUNTERS_HELP),
    seed: int = typer.Option(0, help="Seed of the inputs."),
    budget_ms: float | None = typer.Option(None, help=plans.BUDGET_HELP),
    sanitize: str | None = typer.Option(None, help=plans.SANITIZE_HELP),
    base: str | None = typer.Option(None, help="The commit that kind compare measures beside each of the others."),
    rounds: int | None = typer.Option(
        None, min=1, help=f"Paired rounds of a comparison; by default {ROUNDS}, or fewer where they decide."
    ),
    stop: str | None = typer.Option(None, help=plans.STOP_HELP),
    pairs: list[str] = typer.Option(
        [], help="VARIANT:CASE to compare, separated by blanks; by default --variants on --cases, or all that there is."
    ),
    toolchains: str | None = typer.Option(None, help=plans.TOOLCHAINS_HELP),
    known_variants: list[str] = typer.Option([], help=plans.KNOWN_HELP),
    known_cases: list[str] = typer.Option([], help="The same for cases, separated by blanks."),
    require_detectable: float | None = typer.Option(None, help=plans.DETECTABLE_HELP, min=0.1, max=100),
) -> None:
    """Measure commits here and now: needs git, torch and a compiler, but no server, database or network."""
    from warpwatch.worker.devices import choose_device
    from warpwatch.worker.reporter import CannotRunError

    spec = JobSpec(
        suite=suite,
        variants=plans.split(variants) or None,
        cases=plans.split(cases, None) or None,
        case_limit=case_limit,
        seed=seed,
        budget_ns=plans.budget_ns(budget_ms),
        rounds=rounds,
        stop=plans.stop_rule(stop),
        pairs=plans.parse_pairs(pairs) or None,
        profile=plans.profile_plan(profile, counters),
        sanitize=sanitize,
        known=plans.known_names(known_variants, known_cases),
    )
    try:
        spec = replace(spec, toolchains=plans.parse_toolchains(toolchains))
        chosen = plans.parse_kinds(kinds, base is not None)
        plans.expect_sanitizer(sanitize, [*chosen])
        if require_detectable is not None and JobKind.COMPARE not in chosen:
            raise ValueError("--require-detectable: add kind compare to --kinds, and --base, to have a comparison")
        source = parse_source(definitions) if definitions is not None else None
        names = plans.split([operators or ""]) or None
        request = RunRequest(names, chosen, traces, spec, base, source, require_detectable)
        raise typer.Exit(_run(load_settings(), request, choose_device(device), repository, commits, output))
    except (git.GitError, ProjectError, SettingError, CannotRunError, ValueError, OSError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


def _run(settings: Settings, request: RunRequest, device: str, repository: str, commits: str, output: Path) -> int:
    from warpwatch.bundle import BundleWriter
    from warpwatch.server.verdicts.thresholds import stop_rule
    from warpwatch.worker.host import Host
    from warpwatch.worker.tools import Tools

    if request.spec.rounds is None and request.spec.stop is None:
        rule = stop_rule(device.partition(":")[0], is_suspected=False)
        request = replace(request, spec=replace(request.spec, stop=rule))
    url, shas = find_commits(settings, repository, commits)
    base_sha = find_commits(settings, repository, request.base)[1][0] if request.base else None
    mirror = git.update_mirror(url, settings.home)
    version = newest_version(request.definitions, settings.home) if request.definitions is not None else None
    infos = [git.describe(mirror, sha) for sha in dict.fromkeys([*shas, *filter(None, [base_sha])])]
    # It must be a name under which a server can record the results.
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(url).name.removesuffix(".git")).lstrip("._-")[:100] or "repository"
    # Whoever types this command chose the commits, whether a branch holds them or not.
    tools = Tools(Host(replace(settings, fork_isolation="none"), device))
    tally = Tally()
    subject = f" ({shas[0][:9]} {infos[0].subject})" if len(shas) == 1 else ""
    console.print(
        f"measuring {len(shas)} commit{'s' * (len(shas) != 1)} of {name} on {device}{subject}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    unmeasured = describe_uncommitted(repository, shas, output)
    _show_uncommitted(unmeasured)
    try:
        with (
            BundleWriter(output, name, _address(url), infos, __version__) as bundle,
            run_progress(console) as progress,
            interruptible(progress),
        ):
            sources = Sources(mirror, version)
            if shas and request.spec.sanitize is None:
                _start_template(tools, mirror, sources, shas[0], progress)
            place = (settings.home, mirror, sources, url)
            jobs = [job for sha in shas for job in _requests(request, *place, sha, base_sha, tally)]
            _measure(request, jobs, tools, bundle, progress, tally)
    finally:
        tools.close()
    status = _summarise(tally, output, request.required)
    # The table may be long, so that the first note has left the screen.
    _show_uncommitted(unmeasured)
    return status


def _start_template(tools: Tools, mirror: Path, sources: Sources, sha: str, progress: TerminalReporter) -> None:
    """Lets the template of later children import torch while the first commit is laid out. Each job says itself what
    is wrong."""
    from warpwatch.worker.mirrors import project_of
    from warpwatch.worker.reporter import CannotRunError

    with suppress(ProjectError, CannotRunError):
        if project_of(tools.host.home, mirror, sha, sources.definitions).needs_template:
            tools.host.start_template(progress)


def find_commits(settings: Settings, repository: str, commits: str) -> tuple[str, list[str]]:
    """The repository's address and the commits. In a checkout, refs such as HEAD are resolved there."""
    folder = Path(repository)
    if folder.is_dir() and git.git("rev-parse", "--is-bare-repository", cwd=folder).strip() == "true":
        # Without a checkout it is read like one at a URL.
        root, url = git.update_mirror(str(folder.absolute()), settings.home), str(folder.absolute())
    elif folder.is_dir():
        root = Path(git.git("rev-parse", "--show-toplevel", cwd=Path(repository)).strip())
        url = str(root)
    else:
        root, url = git.update_mirror(repository, settings.home), repository
    shas = [sha for text in commits.split(",") for sha in git.resolve_range(root, text.strip())]
    return url, list(dict.fromkeys(shas))


def describe_uncommitted(repository: str, shas: list[str], output: Path) -> str:
    """A sentence on the files of a checkout that differ from HEAD, where HEAD is measured; "" where none does.

    Results files are no such files: this command itself leaves them in the checkout.
    """
    folder = Path(repository)
    if not folder.is_dir() or git.git("rev-parse", "--is-bare-repository", cwd=folder).strip() == "true":
        return ""
    head = git.resolve(folder, "HEAD")
    if head not in shas:
        return ""
    root = Path(git.git("rev-parse", "--show-toplevel", cwd=folder).strip())
    # Without renames, each entry is two letters, a blank and one path.
    words = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=dirty")
    entries = git.git(*words, cwd=root, environment=git.checkout_settings(root)).split("\0")
    names = [entry[3:] for entry in entries if entry]
    files = [name for name in names if not name.endswith(".wwb") and (root / name).resolve() != output.resolve()]
    if not files:
        return ""
    shown = ", ".join(json.dumps(name, ensure_ascii=False)[1:-1] for name in files[:FILES_SHOWN])
    rest = f" and {len(files) - FILES_SHOWN} more" if len(files) > FILES_SHOWN else ""
    counted = f"{len(files)} changed file{'s' * (len(files) != 1)}"
    return (
        f"commit {head[:9]} is measured without {counted} of the working tree: {shown}{rest}; "
        "commit them, or use `warpwatch try`"
    )


def _show_uncommitted(sentence: str) -> None:
    if sentence:
        console.print(sentence, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _address(url: str) -> str:
    """The address under which others reach the repository: a checkout's origin without a password, else `url`."""
    if not Path(url).is_dir():
        return url
    try:
        origin = git.git("config", "--get", "remote.origin.url", cwd=Path(url)).strip()
    except git.GitError:
        return url
    return re.sub(r"//[^/@]*@", "//", origin)


@dataclass(slots=True)
class Tally:
    """Counts of statuses, the results and what the time went to by commit and operator, and the jobs that could not run
    at all."""

    statuses: Counter[str] = field(default_factory=Counter)
    tables: dict[tuple[str, str], ResultTable] = field(default_factory=dict)
    times: defaultdict[tuple[str, str], RunTimes] = field(default_factory=lambda: defaultdict(RunTimes))
    problems: list[str] = field(default_factory=list)
    interrupted: bool = False


def _measure(
    request: RunRequest,
    jobs: list[JobRequest],
    tools: Tools,
    bundle: BundleWriter,
    progress: TerminalReporter,
    tally: Tally,
) -> None:
    from warpwatch.worker.ahead import JOBS, BuildAhead
    from warpwatch.worker.execution import execute
    from warpwatch.worker.reporter import CannotRunError, Stopped

    # What an operator had at the last commit that could be measured; without it, what the command line names.
    known: dict[str, KnownNames] = {}
    number = 0
    ahead = BuildAhead(tools, lambda: jobs[number + 1 : number + 1 + JOBS])
    for number, job in enumerate(jobs):
        progress.job(number, len(jobs), f"{job.sha[:9]} {job.operator} {job.kind}")
        if job.kind == JobKind.PROFILE and bundle.traces >= request.traces:
            continue
        folder = Path(tempfile.mkdtemp(prefix="warpwatch-traces-"))
        started = datetime.now(UTC)
        try:
            informed = replace(job, spec=replace(job.spec, known=known.get(job.operator, job.spec.known)))
            try:
                with ahead.beside(informed, progress):
                    outcome: Outcome | None = execute(informed, tools, progress, folder)
            except Stopped as stopped:
                tally.interrupted, outcome = True, stopped.outcome
            if outcome is not None:
                bundle.add(job, _few_traces(outcome, request.traces - bundle.traces), started, datetime.now(UTC))
                table = tally.tables.setdefault((job.sha, job.operator), ResultTable(tools.host.kind))
                table.add(job.kind, outcome, job.spec.stop)
                results: list[Finding | Comparison] = [*outcome.findings, *outcome.comparisons]
                tally.statuses.update(str(result.status) for result in results)
                known[job.operator] = KnownNames(
                    list(dict.fromkeys(result.variant for result in results)),
                    list(dict.fromkeys(result.case for result in results)),
                )
        except CannotRunError as error:
            tally.problems.append(f"{job.sha[:9]} {job.operator} {job.kind}: {error}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            times = tally.times[job.sha, job.operator]
            tally.times[job.sha, job.operator] = times.plus(tools.host.stopwatch.take())
        if tally.interrupted:
            break


def _requests(
    request: RunRequest,
    home: Path,
    mirror: Path,
    sources: Sources,
    url: str,
    sha: str,
    base_sha: str | None,
    tally: Tally,
) -> Iterator[JobRequest]:
    """Every job of one commit: one per operator and kind."""
    from warpwatch.worker.mirrors import project_of

    try:
        project_of(home, mirror, sha, sources.definitions)
    except ProjectError as error:
        tally.problems.append(f"{sha[:9]}: {error}")
        return
    for operator in sources.operators(sha):
        if request.operators is None or operator in request.operators:
            for kind in request.kinds:
                base = base_sha if kind == JobKind.COMPARE else None
                yield JobRequest(kind, url, sha, operator, request.spec_of(kind), base, sources.definitions)


def _few_traces(outcome: Outcome, limit: int) -> Outcome:
    """The outcome with at most `limit` of its traces, the first ones."""
    findings = []
    for finding in outcome.findings:
        if finding.profile is not None and finding.profile.path is not None:
            limit -= 1
            if limit < 0:
                finding = replace(finding, profile=replace(finding.profile, path=None))
        findings.append(finding)
    return replace(outcome, findings=findings)


def _summarise(tally: Tally, output: Path, required: float | None) -> int:
    """Prints the results; returns 0 when all is well, 1 when something is wrong or slower, 2 when something could not
    run, or could not tell a slow-down of the required size."""
    for (sha, operator), table in tally.tables.items():
        console.print(f"{sha[:9]} {operator}", style="bold", markup=False, highlight=False)
        for line, style in table.lines():
            console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
        console.print(f"time: {tally.times[sha, operator]}", style="dim", markup=False, highlight=False, soft_wrap=True)
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
    cases = [case for table in tally.tables.values() for case in table.sensitivities]
    sensitivity = summarize(cases, None if required is None else required / 100)
    if cases:
        console.print(sensitivity.summary, style="dim", markup=False, highlight=False, soft_wrap=True)
    if sensitivity.missed:
        console.print(missed_text(sensitivity), style="yellow", markup=False, highlight=False, soft_wrap=True)
    slower = any(table.slower for table in tally.tables.values())
    if slower or any(status not in NO_FAILURE for status in tally.statuses):
        return 1
    return 2 if sensitivity.missed else 0
