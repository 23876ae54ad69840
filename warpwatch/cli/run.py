"""`warpwatch run`: measures without server, database or network, writes a results file, and reports like a server.

Exit codes, for CI, are those of `submit --wait`.
"""

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
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.rounds import ROUNDS
from warpwatch.contract.spec import USUAL_PLAN, JobRequest, JobSpec, KnownNames
from warpwatch.contract.words import JobKind
from warpwatch.definitions import DefinitionsSource, newest_version, parse_source
from warpwatch.project import FILE_NAME, ProjectError
from warpwatch.server.reports.formats import plural
from warpwatch.server.reports.sensitivity import missed_text
from warpwatch.settings import SettingError, Settings, load_settings
from warpwatch.sources import Sources

if TYPE_CHECKING:
    from warpwatch.bundle import BundleWriter
    from warpwatch.cli.gate import RunResults
    from warpwatch.cli.results_history import HistoryFiles, ResultsHistory
    from warpwatch.contract.outcome import Comparison, Finding, Outcome
    from warpwatch.worker.tools import Tools

KINDS = ("check", "bench", "profile")
GATE_KINDS = ("check", "bench", "compare")
"""Kinds of jobs that run where --kinds is not given: without --base, and with it."""
FILES_SHOWN = 5
"""Changed files that a note on the working tree names."""
console = Console()


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Request of the command line. operators: None means all operators. base: the commit that comparisons measure
    beside each of the other commits. required: slow-down in per cent that must be found; None for any. skip_unchanged:
    leaves out operators whose sources are those of the base."""

    operators: list[str] | None
    kinds: list[JobKind]
    traces: int
    spec: JobSpec
    base: str | None = None
    definitions: DefinitionsSource | None = None
    required: float | None = None
    skip_unchanged: bool = False

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


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Files beside the results file. reports: by form. history: where earlier results are; record: whether new ones are
    added there."""

    reports: dict[str, Path]
    history: str | None
    record: bool


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
    kinds: str | None = typer.Option(
        None,
        help="check, bench, profile, compare; separated by commas. Default: check,bench,profile; with --base "
        "check,bench,compare.",
    ),
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
    skip_unchanged: bool = typer.Option(
        False, "--skip-unchanged", help="Leave out operators whose sources are those of --base."
    ),
    require_detectable: float | None = typer.Option(None, help=plans.DETECTABLE_HELP, min=0.1, max=100),
    report: list[str] = typer.Option([], help=f"FORMAT=FILE with {', '.join(plans.FORMS)}; may be repeated."),
    history: str | None = typer.Option(
        None,
        metavar="FILE|FOLDER|BRANCH",
        help="Earlier results, as a results file, a folder of them or a branch: what stands out of them is compared.",
    ),
    record: bool = typer.Option(
        False, "--record", help="Add checks and times to the folder or branch of --history, as one file per run."
    ),
) -> None:
    """Measure commits here and now: needs git, torch and a compiler, but no server, database or network."""
    from warpwatch.worker.devices import choose_device
    from warpwatch.worker.reporter import CannotRunError

    reports = plans.parse_reports(report)
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
        usual = GATE_KINDS if base is not None else KINDS
        chosen = plans.parse_kinds(kinds or ",".join(usual), base is not None)
        plans.expect_sanitizer(sanitize, [*chosen])
        if require_detectable is not None and JobKind.COMPARE not in chosen and history is None:
            raise ValueError(
                "--require-detectable: add kind compare to --kinds, and --base, to have a comparison; or --history"
            )
        if record and history is None:
            raise ValueError("--record: name the folder or branch to add to with --history")
        if skip_unchanged and base is None:
            raise ValueError("--skip-unchanged: name the commit to hold the sources against with --base")
        source = parse_source(definitions) if definitions is not None else None
        names = plans.split([operators or ""]) or None
        request = RunRequest(names, chosen, traces, spec, base, source, require_detectable, skip_unchanged)
        gate = RunFiles(reports, history, record)
        raise typer.Exit(_run(load_settings(), request, choose_device(device), repository, commits, output, gate))
    except (git.GitError, ProjectError, SettingError, CannotRunError, ValueError, OSError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


def _run(
    settings: Settings, request: RunRequest, device: str, repository: str, commits: str, output: Path, files: RunFiles
) -> int:
    from warpwatch.bundle import BundleWriter
    from warpwatch.cli.gate import RunResults
    from warpwatch.cli.results_history import HistoryFiles
    from warpwatch.server.verdicts.thresholds import stop_rule
    from warpwatch.worker.host import Host
    from warpwatch.worker.tools import Tools

    kind = device.partition(":")[0]
    if request.spec.rounds is None and request.spec.stop is None:
        request = replace(request, spec=replace(request.spec, stop=stop_rule(kind, is_suspected=False)))
    url, shas = find_commits(settings, repository, commits)
    base_sha = find_commits(settings, repository, request.base)[1][0] if request.base else None
    history = HistoryFiles(files.history, Path(url)) if files.history is not None else None
    mirror = git.update_mirror(url, settings.home)
    version = newest_version(request.definitions, settings.home) if request.definitions is not None else None
    infos = [git.describe(mirror, sha) for sha in dict.fromkeys([*shas, *filter(None, [base_sha])])]
    head = max((info for info in infos if info.sha in shas), key=lambda info: info.ordinal, default=None)
    # It must be a name under which a server can record the results.
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(url).name.removesuffix(".git")).lstrip("._-")[:100] or "repository"
    # Whoever types this command chose the commits, whether a branch holds them or not.
    tools = Tools(Host(replace(settings, fork_isolation="none"), device))
    line = git.first_parents(mirror, head.sha)[::-1] if head is not None else [""]
    tally = Tally(RunResults(name, _address(url), line, base_sha, kind, request.required))
    if history is not None:
        tally.results.history = _read_history(history)
    subject = f" ({short_sha(shas[0])} {infos[0].subject})" if len(shas) == 1 else ""
    _print(f"measuring {len(shas)} commit{'s' * (len(shas) != 1)} of {name} on {device}{subject}")
    unmeasured = describe_uncommitted(repository, shas, output)
    _print(unmeasured, "yellow")
    sources = Sources(mirror, version)
    try:
        with (
            BundleWriter(output, name, _address(url), infos, __version__) as bundle,
            run_progress(console) as progress,
            interruptible(progress),
        ):
            if shas and request.spec.sanitize is None:
                _start_template(tools, mirror, sources, shas[0], progress)
            place = (settings.home, mirror, sources, url)
            jobs = [job for sha in shas for job in _requests(request, *place, sha, base_sha, tally)]
            _measure(request, jobs, tools, bundle, progress, tally, tally.results.jobs)
            if history is not None and not tally.interrupted:
                trials = tally.results.trial_jobs(stop_rule(kind, is_suspected=True))
                # The file names its commits when it is complete.
                bases = {trial.base_sha for trial in trials if trial.base_sha} - {info.sha for info in infos}
                infos += [git.describe(mirror, sha) for sha in sorted(bases)]
                _measure(request, trials, tools, bundle, progress, tally, tally.results.trials)
    finally:
        tools.close()
    status = _finish(tally, output, files, sources.folder(head.sha) if head is not None else "")
    if history is not None and files.record and head is not None and not tally.interrupted:
        # What is wrong or slower belongs to the history as well, and its exit code counts.
        recorded = _record(history, tally.results, infos)
        status = status or recorded
    # The table may be long, so that the first note has left the screen.
    _print(unmeasured, "yellow")
    return status


def _read_history(place: HistoryFiles) -> ResultsHistory:
    history = place.read()
    _print(f"history: {plural(history.files, 'results file')}")
    for message in history.left_out:
        _print(f"history: left out: {message}", "yellow")
    return history


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
        f"commit {short_sha(head)} is measured without {counted} of the working tree: {shown}{rest}; "
        "commit them, or use `warpwatch try`"
    )


def _print(sentence: str, style: str = "") -> None:
    if sentence:
        console.print(sentence, style=style, markup=False, highlight=False, soft_wrap=True)


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
    """The results, counts of statuses, tables and what the time went to by commit and operator, and whether somebody
    interrupted it."""

    results: RunResults
    statuses: Counter[str] = field(default_factory=Counter)
    tables: dict[tuple[str, str], ResultTable] = field(default_factory=dict)
    times: defaultdict[tuple[str, str], RunTimes] = field(default_factory=lambda: defaultdict(RunTimes))
    interrupted: bool = False


def _measure(
    request: RunRequest,
    jobs: list[JobRequest],
    tools: Tools,
    bundle: BundleWriter,
    progress: TerminalReporter,
    tally: Tally,
    results: list[tuple[JobRequest, Outcome]],
) -> None:
    """Measures the jobs, and adds those that could run to `results`."""
    from warpwatch.cli.results_history import without_samples
    from warpwatch.worker.ahead import JOBS, BuildAhead
    from warpwatch.worker.execution import execute
    from warpwatch.worker.reporter import CannotRunError, Stopped

    # What an operator had at the last commit that could be measured; without it, what the command line names.
    known: dict[str, KnownNames] = {}
    number = 0
    ahead = BuildAhead(tools, lambda: jobs[number + 1 : number + 1 + JOBS])
    for number, job in enumerate(jobs):
        progress.job(number, len(jobs), f"{short_sha(job.sha)} {job.operator} {job.kind}")
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
                results.append((job, without_samples(outcome)))
                rows: list[Finding | Comparison] = [*outcome.findings, *outcome.comparisons]
                tally.statuses.update(str(row.status) for row in rows)
                known[job.operator] = KnownNames(
                    list(dict.fromkeys(row.variant for row in rows)), list(dict.fromkeys(row.case for row in rows))
                )
        except CannotRunError as error:
            tally.results.failed.append((job, str(error), error.reason))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            times = tally.times[job.sha, job.operator]
            tally.times[job.sha, job.operator] = times.plus(tools.host.stopwatch.take())
        if tally.interrupted:
            tally.results.unfinished = len(jobs) - number
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
        tally.results.failed.append((JobRequest(request.kinds[0], url, sha, FILE_NAME), str(error), None))
        return
    for operator in sources.operators(sha):
        if request.operators is None or operator in request.operators:
            if request.skip_unchanged and base_sha and sources.of(sha, operator) == sources.of(base_sha, operator):
                tally.results.unchanged.append(operator)
                continue
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


def _finish(tally: Tally, output: Path, files: RunFiles, folder: str) -> int:
    """Prints the results and writes the reports; returns the exit code of the report, or 2 where nothing was measured
    or somebody interrupted it. folder: where the newest commit keeps its operators."""
    from warpwatch.cli.gate import write_reports

    for (sha, operator), table in tally.tables.items():
        _print(f"{short_sha(sha)} {operator}", "bold")
        for line, style in table.lines():
            _print(line, style)
        _print(f"time: {tally.times[sha, operator]}", "dim")
    results = tally.results
    for job, message, _ in results.failed:
        _print(f"could not run: {short_sha(job.sha)} {job.operator} {job.kind}: {message}", "red")
    counts = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in sorted(tally.statuses.items()))
    _print(f"{output}: {counts or 'no results'}, {output.stat().st_size / 1e6:.2f} MB")
    if tally.interrupted:
        _print("interrupted; the file holds what was measured until then", "yellow")
    report = results.report()
    _print(report.summary)
    if files.history is not None or any(job.kind == JobKind.COMPARE for job, _ in results.jobs):
        _print(report.sensitivity.summary, "dim")
        _print(missed_text(report.sensitivity), "yellow")
    write_reports(results, report, folder, files.reports)
    is_empty = not (tally.statuses or results.unchanged or results.failed)
    return 2 if tally.interrupted or is_empty else report.exit_code


def _record(place: HistoryFiles, results: RunResults, commits: list[git.CommitInfo]) -> int:
    """Adds checks and times to the history; 0, or 2 where that failed."""
    from warpwatch.cli.results_history import HistoryError, write_history_file

    with tempfile.TemporaryDirectory(prefix="warpwatch-history-") as folder:
        file = Path(folder) / "results.wwb"
        write_history_file(file, results.repository, results.repository_url, commits, results.jobs)
        try:
            _print(f"recorded: {place.record(file, results.head_sha)}")
        except (HistoryError, git.GitError, OSError) as error:
            _print(str(error), "red")
            return 2
    return 0
