"""`warpwatch try`: measures what a checkout holds, committed or not, beside a commit, without a server."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console

from warpwatch import git
from warpwatch.cli import plans
from warpwatch.cli.app import app
from warpwatch.cli.client import ApiError
from warpwatch.cli.progress import TerminalReporter, interruptible, run_progress
from warpwatch.cli.server_try import ServerTarget, is_remote, try_on_server
from warpwatch.contract.case import derive_case, parse_case
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.spec import DefinitionsVersion, JobRequest, JobSpec
from warpwatch.contract.words import JobKind, Status
from warpwatch.definitions import DefinitionsSource, newest_version, parse_source
from warpwatch.project import FILE_NAME, ProjectError, parse_project
from warpwatch.settings import SettingError, load_settings
from warpwatch.sources import Sources

if TYPE_CHECKING:
    from warpwatch.cli.result_table import ResultTable
    from warpwatch.contract.activities import RunTimes
    from warpwatch.contract.catalogue import OperatorEntry
    from warpwatch.contract.messages import KernelResources
    from warpwatch.contract.outcome import Outcome
    from warpwatch.worker.checkout import Checkout
    from warpwatch.worker.tools import Tools

BUDGET_MS = 300.0
"""For one variant on one case and side: a person waits, and the rounds end as soon as they decide."""
SECONDS = 6.0
"""That rounds may take, so that with the checks before them an answer takes ten."""
MOST_ROUNDS = 100
CASES = 4
POLL_SECONDS = 0.5
console = Console()


@dataclass(frozen=True, slots=True)
class WorkingTreeRequest:
    """Request of the command line. operators: empty means the operators that differ from the base. definitions: where
    the operators are defined, None for the working tree itself. seconds: time that the rounds of an operator may
    take. required: slow-down in per cent that must be found; None for any."""

    operators: list[str]
    cases: list[str]
    shapes: list[str]
    spec: JobSpec
    definitions: DefinitionsSource | None = None
    seconds: float = SECONDS
    required: float | None = None


@app.command("try")
def try_changes(
    operators: list[str] = typer.Argument(None, help="Operators; by default those that differ from the base."),
    shape: list[str] = typer.Option(
        [], help="Sizes that need not be declared, such as m=4096,n=4096,k=512,bf16; may be given several times."
    ),
    case: list[str] = typer.Option([], help="Keys of cases, separated by blanks; they replace the suite."),
    variants: list[str] = typer.Option([], help="Separated by commas; all by default."),
    base: str = typer.Option("HEAD", help="The commit to measure beside."),
    suite: str = typer.Option("quick", help="quick or full."),
    case_limit: int = typer.Option(CASES, min=0, help="Take so many cases of the suite; 0 means all."),
    device: str = typer.Option(
        "auto",
        help="cpu, cuda, cuda:1 …; auto for the first GPU if any, or the key of a server's device.",
    ),
    repository: Path = typer.Option(Path(), help="A folder of the checkout."),
    definitions: str | None = typer.Option(
        None, metavar="PATH_OR_URL[@REF]", help="Where the operators are defined, if not in the checkout."
    ),
    server: str | None = typer.Option(
        None, metavar="URL", help="Send the working tree to this server and wait for its device."
    ),
    name: str | None = typer.Option(None, help="The repository's name on the server. Default: that of the checkout."),
    budget_ms: float = typer.Option(BUDGET_MS, help=plans.BUDGET_HELP),
    seconds: float = typer.Option(
        SECONDS,
        min=0.1,
        max=86400,
        help="Time for the paired rounds of an operator, on this machine; more of it narrows the intervals. Six rounds "
        "are always taken.",
    ),
    rounds: int = typer.Option(MOST_ROUNDS, min=6, max=MOST_ROUNDS, help="At most so many paired rounds."),
    seed: int = typer.Option(0, help="Seed of the inputs."),
    require_detectable: float | None = typer.Option(None, help=plans.DETECTABLE_HELP, min=0.1, max=100),
    watch: bool = typer.Option(False, help="Measure again whenever a file is saved, until Ctrl-C."),
) -> None:
    """Check and time what is in the working tree beside a commit: right or wrong, faster or slower, and on which cases.

    Exits 0 if all is right and nothing is slower, 1 if something is wrong or slower, 2 if it could not be measured, or
    could not tell a slow-down of the size that --require-detectable names.
    """
    spec = JobSpec(
        suite=suite,
        variants=plans.split(variants) or None,
        case_limit=case_limit or None,
        seed=seed,
        budget_ns=plans.budget_ns(budget_ms),
        rounds=rounds,
    )
    try:
        source = parse_source(definitions) if definitions is not None else None
        named = operators or [], plans.split(case, None), shape
        request = WorkingTreeRequest(*named, spec, source, seconds, require_detectable)
        root = Path(git.git("rev-parse", "--show-toplevel", cwd=repository).strip())
        base_sha = git.resolve(root, base)
        if is_remote(server, device):
            if source is not None:
                raise ValueError("--definitions: a server measures with the definitions that are registered there")
            target = ServerTarget(server, device, name)

            def attempt(tree: WorkingTree, base_sha: str) -> Iterable[tuple[str, OperatorResult]]:
                return try_on_server(request, tree, base_sha, target)

            status = _repeat(root, base_sha, attempt, require_detectable, watch=watch)
        else:
            status = _try_here(request, root, base_sha, device, watch=watch)
    except (git.GitError, SettingError, ApiError, ProjectError, ValueError, OSError) as error:
        _fail(error)
    raise typer.Exit(status)


Attempt = Callable[["WorkingTree", str], Iterable[tuple[str, "OperatorResult"]]]
"""Measures a working tree beside a commit; the results by operator."""


def _try_here(request: WorkingTreeRequest, root: Path, base_sha: str, device: str, *, watch: bool) -> int:
    """Measures on this machine; returns the exit status."""
    from warpwatch.worker.devices import choose_device
    from warpwatch.worker.host import Host
    from warpwatch.worker.reporter import CannotRunError, Stopped
    from warpwatch.worker.tools import Tools

    # Whoever types this command chose the code, whether a branch holds it or not.
    tools = Tools(Host(replace(load_settings(), fork_isolation="none"), choose_device(device)))
    try:
        if request.definitions is None and _needs_template(root):
            with run_progress(console, is_quiet=True) as progress:
                tools.host.start_template(progress)
        return _repeat(
            root, base_sha, lambda tree, sha: _try_tree(request, tools, tree, sha), request.required, watch=watch
        )
    except (CannotRunError, Stopped) as error:
        _fail(error)
    finally:
        tools.close()


def _needs_template(root: Path) -> bool:
    try:
        return parse_project((root / FILE_NAME).read_text(encoding="utf-8")).needs_template
    except (OSError, ValueError, ProjectError):
        return False


def _repeat(root: Path, base_sha: str, attempt: Attempt, required: float | None, *, watch: bool) -> int:
    """Measures and prints, again at every change with `watch`; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="warpwatch-try-") as folder:
        tree = WorkingTree(root, Path(folder) / "index")
        try:
            status = _show_attempt(attempt, tree, base_sha, required)
            while watch:
                _print("waiting for changes; Ctrl-C ends", "dim")
                tree.wait()
                status = _show_attempt(attempt, tree, base_sha, required)
        except KeyboardInterrupt:
            raise typer.Exit(0 if watch else 2) from None
    return status


def _show_attempt(attempt: Attempt, tree: WorkingTree, base_sha: str, required: float | None) -> int:
    """Measures and prints once; returns the exit status. required: see WorkingTreeRequest."""
    from warpwatch.server.reports.sensitivity import missed_text, summarize

    started = time.monotonic()
    tables = []
    for operator, result in attempt(tree, base_sha):
        result.show(operator)
        tables.append(result.table)
    wrong, slower = (sum(getattr(table, name) for table in tables) for name in ("wrong", "slower"))
    subject = git.describe(tree.root, base_sha).subject
    sensitivity = summarize(
        [case for table in tables for case in table.sensitivities], None if required is None else required / 100
    )
    seconds = time.monotonic() - started
    _print(sensitivity.summary, "dim")
    if sensitivity.missed:
        _print(missed_text(sensitivity), "yellow")
    summary = f"{wrong} wrong, {slower} slower than {short_sha(base_sha)} ({subject}); {seconds:.1f} s"
    _print(summary, "red" if wrong or slower else "yellow" if sensitivity.missed else "green")
    return 1 if wrong or slower else 2 if sensitivity.missed else 0


def _fail(error: Exception) -> NoReturn:
    _print(str(error), "red")
    raise typer.Exit(2) from None


class WorkingTree:
    """A checkout as commits. index: a file that is kept between them, so that only changed files are read again."""

    def __init__(self, root: Path, index: Path) -> None:
        self.root = root
        self._index = index
        self._committed = ""
        self._settings = git.checkout_settings(root)
        own = root / git.git("rev-parse", "--git-path", "index", cwd=root).strip()
        if own.exists():
            # With its time: git reads a file again that was saved in the second in which the index was written.
            shutil.copy2(own, index)

    def tree(self) -> str:
        """The id of the tree of all files that are not ignored; branches, index and files stay as they are."""
        git.git("add", "--all", cwd=self.root, index=self._index, environment=self._settings)
        # Git reads files again here, too, that were saved in the second in which the index was written.
        return git.git("write-tree", cwd=self.root, index=self._index, environment=self._settings).strip()

    def take(self) -> str:
        """The same; `wait` compares with it from now on."""
        self._committed = self.tree()
        return self._committed

    def commit(self) -> str:
        """A commit of that tree on HEAD, which no ref holds, so that git removes it some day."""
        self.take()
        names = ("user.name=warpwatch", "user.email=warpwatch@localhost")
        words = ("commit-tree", self._committed, "-p", "HEAD", "-m", "Working tree")
        return git.git(*words, cwd=self.root, config=names).strip()

    def wait(self) -> None:
        """Returns when the files differ from those last committed, at once if they changed since."""
        while self.tree() == self._committed:
            time.sleep(POLL_SECONDS)


def _try_tree(
    request: WorkingTreeRequest, tools: Tools, tree: WorkingTree, base_sha: str
) -> Iterator[tuple[str, OperatorResult]]:
    """Measures every operator asked for on this machine, one after the other."""
    head_sha = tree.commit()
    mirror = git.update_mirror(str(tree.root), tools.host.home)
    git.fetch_commit(str(tree.root), mirror, head_sha)
    # Read at every attempt, so that --watch follows definitions that are being written.
    version = newest_version(request.definitions, tools.host.home) if request.definitions is not None else None
    # The base stays checked out for the next operator, and for the next attempt of --watch.
    tools.lasting = frozenset({base_sha, head_sha})
    sources = Sources(mirror, version)
    operators = request.operators or [
        name for name in sources.operators(head_sha) if sources.of(base_sha, name) != sources.of(head_sha, name)
    ]
    if not operators:
        raise ValueError(f"no operator differs from {short_sha(base_sha)}; name one, or another --base")
    for number, operator in enumerate(operators):
        with run_progress(console, is_quiet=True) as progress, interruptible(progress):
            progress.job(number, len(operators), operator)
            sides = Sides(str(tree.root), base_sha, head_sha, version)
            tools.host.stopwatch.take()
            result = _Attempt(request, tools, progress, sides, operator).run()
            result = replace(result, times=tools.host.stopwatch.take())
        yield operator, result


@dataclass(frozen=True, slots=True)
class Sides:
    """The working tree as a commit, the commit beside it, and the version of the definitions of both."""

    url: str
    base_sha: str
    head_sha: str
    version: DefinitionsVersion | None


class _Attempt:
    """One operator at the working tree and at the base."""

    def __init__(
        self, request: WorkingTreeRequest, tools: Tools, progress: TerminalReporter, sides: Sides, operator: str
    ) -> None:
        self._request = request
        self._tools = tools
        self._progress = progress
        self._sides, self._operator = sides, operator

    def run(self) -> OperatorResult:
        """Checks the working tree, then compares what is right."""
        from warpwatch.cli.result_table import ResultTable
        from warpwatch.server.verdicts.thresholds import stop_rule

        kind = self._tools.host.kind
        table = ResultTable(kind)
        # Both at once, while the template of their children still imports.
        _, head = self._checkouts([self._sides.base_sha, self._sides.head_sha])
        is_program = head.project.program(self._operator) is not None
        # The benchmarks of a program are known once it has run.
        cases = (self._request.cases or None) if is_program else self._cases(head)
        variants, same = (self._request.spec.variants, []) if is_program else self._variants(head)
        asked = replace(self._request.spec, cases=cases, variants=variants, case_limit=None)
        checked = self._execute(JobKind.CHECK, asked)
        table.add(JobKind.CHECK, checked)
        pairs = [(finding.variant, finding.case) for finding in checked.findings if finding.status is Status.OK]
        if not pairs:
            return OperatorResult(table, [], same)
        if not is_program:
            _spare_compilers(head, self._entry(head), pairs)
        stop = replace(stop_rule(kind, is_suspected=False), seconds=self._request.seconds)
        spec = replace(asked, pairs=pairs, stop=stop)
        table.add(JobKind.COMPARE, self._execute(JobKind.COMPARE, spec), spec.stop)
        return OperatorResult(table, self._changed_code() if checked.build is not None else [], same)

    def _checkouts(self, shas: list[str]) -> list[Checkout]:
        checkouts = self._tools.checkouts(self._sides.url, shas, self._progress, self._sides.version)
        for checkout in checkouts:
            # No other operator is shown.
            checkout.loads_together = False
        return checkouts

    def _cases(self, head: Checkout) -> list[str]:
        """Keys of the cases asked for, else the first of the suite."""
        from warpwatch.worker.plan import choose_cases

        entry = self._entry(head)
        declared = [parse_case(case.key) for case in entry.cases]
        named = [*self._request.cases, *(derive_case(text, declared).key for text in self._request.shapes)]
        return named or [case.key for case in choose_cases(entry, self._request.spec, JobKind.BENCH)]

    def _variants(self, head: Checkout) -> tuple[list[str] | None, list[str]]:
        """The variants to measure, None for all, and those whose code is the same at both, which show noise alone: by
        the Python code that they reach, and by native sources where they have any."""
        sides = self._sides
        sources = Sources(git.mirror_path(sides.url, self._tools.host.home), sides.version)
        shas = sides.base_sha, sides.head_sha
        base, changed = (sources.parts(sha, self._operator) for sha in shas)
        if self._request.spec.variants is not None or base is None or changed is None:
            return self._request.spec.variants, []
        differing = sources.changed_variants(*shas, self._operator) if base[0] != changed[0] else frozenset[str]()
        variants = self._entry(head).variants
        native = {item.name for item in variants if item.native and base[1] != changed[1]}
        names = [item.name for item in variants if differing is None or item.name in differing | native]
        return (names, [item.name for item in variants if item.name not in names]) if names else (None, [])

    def _entry(self, checkout: Checkout) -> OperatorEntry:
        from warpwatch.worker.plan import expect_entry

        return expect_entry(checkout, self._operator, self._progress)

    def _execute(self, kind: JobKind, spec: JobSpec) -> Outcome:
        from warpwatch.worker.execution import execute

        sides = self._sides
        base = sides.base_sha if kind is JobKind.COMPARE else None
        with tempfile.TemporaryDirectory(prefix="warpwatch-traces-") as folder:
            job = JobRequest(kind, sides.url, sides.head_sha, self._operator, spec, base, sides.version)
            return execute(job, self._tools, self._progress, Path(folder))

    def _changed_code(self) -> list[str]:
        """A line per kernel whose machine code differs; both sides were built for the comparison."""
        sides = []
        for checkout in self._checkouts([self._sides.base_sha, self._sides.head_sha]):
            entry = self._entry(checkout)
            sides.append(checkout.build(entry.uses or [entry.name], self._progress).resources)
        return describe_code_changes(*sides)


def _spare_compilers(head: Checkout, entry: OperatorEntry, pairs: Sequence[tuple[str, str]]) -> None:
    """Children that time native variants need no compilers: it was opcheck that used them in the check, and to import
    them takes longer than some rounds."""
    from warpwatch.worker import templates

    native = {variant.name for variant in entry.variants if variant.native}
    if all(variant in native for variant, _ in pairs):
        # The child of the check has them, and says so with every reply.
        head.drop_child()
        templates.forget_compilers()


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """Results of one operator. code: lines on machine code, none without native code. same: variants that were left
    out, as their code is the same. times: seconds by activity, where this machine measured."""

    table: ResultTable
    code: list[str]
    same: Sequence[str] = ()
    times: RunTimes | None = None

    def show(self, operator: str) -> None:
        _print(operator, "bold")
        for line, style in self.table.lines():
            _print(line, style)
        for line in self.code:
            _print(line, "dim")
        if self.times is not None and self.table.unsure:
            _print(f"{self.table.unsure} inconclusive: more --seconds narrow the interval", "dim")
        if self.same:
            _print(f"the same code at both, so not measured: {', '.join(self.same)}", "dim")
        if self.times is not None:
            _print(str(self.times), "dim")


def _print(text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def describe_code_changes(base: Sequence[KernelResources], head: Sequence[KernelResources]) -> list[str]:
    """A line for every kernel whose machine code is new, gone or different; one line where there is none."""
    before, after = ({(kernel.name, kernel.arch): kernel for kernel in side} for side in (base, head))
    lines = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old is None or new is None:
            lines.append(f"{key[0]} ({key[1]}): {'new' if old is None else 'gone'}")
        elif old.code_hash != new.code_hash:
            parts = [
                f"{name} {was} → {now}"
                for name, was, now in (
                    ("registers", old.registers, new.registers),
                    ("shared bytes", old.shared_bytes, new.shared_bytes),
                    ("spilled bytes", old.spill_bytes, new.spill_bytes),
                    ("code bytes", old.code_bytes, new.code_bytes),
                )
                if was != now
            ]
            lines.append(f"{key[0]} ({key[1]}): machine code differs{': ' if parts else ''}{', '.join(parts)}")
    return lines or ["machine code: the same"]
