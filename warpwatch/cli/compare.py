"""`warpwatch compare`: what a toolchain did to the time of one commit, or whether code or toolchain changed it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from warpwatch import git
from warpwatch.cli import plans
from warpwatch.cli.app import app
from warpwatch.cli.run import find_commits
from warpwatch.contract.measurement import LAUNCH
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, Verdict
from warpwatch.project import ProjectError
from warpwatch.settings import SettingError, Settings, load_settings

if TYPE_CHECKING:
    from warpwatch.server.verdicts.attribution import OriginEffect
    from warpwatch.worker.reporter import Reporter
    from warpwatch.worker.tools import Tools

console = Console()
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Comparing:
    """Request and tools that all comparisons of one call share."""

    request: JobRequest
    tools: Tools
    reporter: Reporter

    def effects(self, old: str, new: str, pairs: list[Pair] | None = None) -> dict[Pair, OriginEffect]:
        """The effect of the second toolchain on every pair that could be measured."""
        from warpwatch.server.verdicts.attribution import judge_toolchains
        from warpwatch.worker.execution import execute

        spec = replace(self.request.spec, toolchains=(old, new), pairs=pairs or self.request.spec.pairs)
        request = replace(self.request, base_sha=self.request.sha, spec=spec)
        with _folder() as traces:
            outcome = execute(request, self.tools, self.reporter, traces)
        for row in outcome.comparisons:
            if row.message:
                console.print(f"{row.variant} {row.case}: {row.status}: {row.message}", markup=False, style="red")
        kind = self.tools.host.kind
        return {
            (row.variant, row.case): judge_toolchains(row.base_ns, row.head_ns, kind)
            for row in outcome.comparisons
            if row.base_ns
        }


@app.command()
def compare(
    toolchains: str = typer.Option(..., help="Names from worker.toml, oldest first, separated by commas."),
    operator: str = typer.Option(..., help="The operator to measure."),
    commit: str = typer.Option("HEAD", help="The commit to measure."),
    base: str | None = typer.Option(
        None, help="An older commit: measures both commits under both toolchains, and says which of them did it."
    ),
    repository: str = typer.Option(".", help="Checkout or address of the repository."),
    suite: str = typer.Option("quick", help="quick or full."),
    cases: list[str] = typer.Option([], help="Key of a case; repeat the option for several cases."),
    variants: list[str] = typer.Option([], help="Variants, separated by commas; all by default."),
    rounds: int | None = typer.Option(None, min=6, help="Rounds of a comparison."),
    budget_ms: float | None = typer.Option(None, help=plans.BUDGET_HELP),
    device: str = typer.Option("auto", help="auto, cpu, cuda or cuda:N."),
) -> None:
    """Compare toolchains on one commit. Three or more are searched for the one that changed its time.

    Exit codes: 0 nothing changed or only the toolchain was compared, 1 the code changed the time, 2 it could not run.
    """
    from warpwatch.worker.devices import choose_device
    from warpwatch.worker.reporter import CannotRunError, Stopped
    from warpwatch.worker.toolchains import ToolchainError

    names = plans.split([toolchains])
    named = plans.split(variants) or None, plans.split(cases, None) or None
    spec = JobSpec(suite, *named, budget_ns=plans.budget_ns(budget_ms), rounds=rounds)
    try:
        if len(names) < 2 or (base is not None and len(names) > 2):
            raise ValueError("name two toolchains, or three or more without --base")
        settings = load_settings()
        url, shas = find_commits(settings, repository, commit)
        request = JobRequest(JobKind.COMPARE, url, shas[0], operator, spec)
        if base is not None:
            request = replace(request, base_sha=find_commits(settings, repository, base)[1][0])
        with _comparing(settings, request, choose_device(device)) as comparing:
            code = _compare_both(comparing, names) if base is not None else _search(comparing, names)
    except (git.GitError, ProjectError, SettingError, ToolchainError, CannotRunError, Stopped, ValueError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        code = 2
    raise typer.Exit(code)


@contextmanager
def _comparing(settings: Settings, request: JobRequest, device: str) -> Iterator[_Comparing]:
    from warpwatch.cli.progress import run_progress
    from warpwatch.worker.host import Host
    from warpwatch.worker.tools import Tools

    git.update_mirror(request.url, settings.home)
    # Whoever types this command chose the commits, whether a branch holds them or not.
    tools = Tools(Host(replace(settings, fork_isolation="none"), device))
    try:
        with run_progress(console) as progress:
            yield _Comparing(request, tools, progress)
    finally:
        tools.close()


def _search(comparing: _Comparing, names: Sequence[str]) -> int:
    """Prints where in the list the time changed; of two names, what the second one did."""
    from warpwatch.server.verdicts.attribution import search_places

    effects = comparing.effects(names[0], names[-1])
    _print_effects(f"{names[-1]} over {names[0]}", effects)
    if not effects:
        return 2
    confirmed = [pair for pair, effect in effects.items() if effect.verdict == Verdict.CONFIRMED]
    if len(names) > 2 and confirmed:
        worst = max(confirmed, key=lambda pair: abs((effects[pair].ratio or 1.0) - 1))
        place = search_places(len(names), _changed(comparing, names, worst, slower=(effects[worst].ratio or 1) > 1))
        if place is not None:
            console.print(f"{' '.join(worst)} changed from {names[place[0]]} to {names[place[1]]}", highlight=False)
    return 0


def _changed(
    comparing: _Comparing, names: Sequence[str], pair: Pair, *, slower: bool
) -> Callable[[int, int], bool | None]:
    def changed(old: int, new: int) -> bool | None:
        """Whether the time of the pair changed between two places; None where it could not be told."""
        if (old, new) == (0, len(names) - 1):
            return True
        effect = comparing.effects(names[old], names[new], [pair]).get(pair)
        if effect is None or effect.verdict == Verdict.UNSURE:
            return None
        _print_effects(f"{names[new]} over {names[old]}", {pair: effect})
        return effect.verdict == Verdict.CONFIRMED and ((effect.ratio or 1.0) > 1) == slower

    return changed


def _compare_both(comparing: _Comparing, names: Sequence[str]) -> int:
    """Prints for every pair whether code, toolchain, both or neither changed its time."""
    from warpwatch.contract.words import ChangeOrigin, Status
    from warpwatch.server.verdicts.attribution import attribute
    from warpwatch.server.verdicts.thresholds import kind_of_time
    from warpwatch.worker.execution import execute

    spec = replace(comparing.request.spec, toolchains=(names[0], names[1]))
    with _folder() as traces:
        outcome = execute(replace(comparing.request, spec=spec), comparing.tools, comparing.reporter, traces)
    origins = set()
    for row in outcome.comparisons:
        if row.status is not Status.OK or row.cells is None:
            console.print(f"{row.variant} {row.case}: {row.status}: {row.message}", style="red", markup=False)
            continue
        result = attribute(row.cells, kind_of_time(comparing.tools.host.kind, row.metric, row.protocol))
        origins.add(result.origin)
        name = f"{row.variant} {row.case}" + (f" {LAUNCH}" if row.metric == LAUNCH else "")
        console.print(f"{name}: {result.origin}", style="bold", markup=False, highlight=False)
        _print_effects("", {("code", ""): result.code, ("toolchain", ""): result.toolchain, ("both", ""): result.total})
    return int(bool(origins & {ChangeOrigin.CODE, ChangeOrigin.BOTH})) if origins else 2


def _print_effects(title: str, effects: dict[Pair, OriginEffect]) -> None:
    if title:
        console.print(title, style="bold", markup=False, highlight=False)
    for pair, effect in effects.items():
        times = "" if effect.ratio is None else f"{effect.ratio:.3f} ({effect.low:.3f} … {effect.high:.3f})"
        console.print(f"  {' '.join(pair).strip():40} {times:28} {effect.verdict}", markup=False, highlight=False)


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="warpwatch-traces-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
