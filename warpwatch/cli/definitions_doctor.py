"""Examines definitions of operators: runs each reference and each variant once and says what is wrong."""

from __future__ import annotations

import ast
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from warpwatch import git
from warpwatch.cli.progress import run_progress
from warpwatch.cli.result_table import ResultTable
from warpwatch.cli.working_tree import WorkingTree
from warpwatch.contract.spec import DefinitionsVersion, JobRequest, JobSpec
from warpwatch.contract.words import NO_FAILURE, JobKind
from warpwatch.definitions import newest_version, parse_source
from warpwatch.project import MeasuredCode, ProjectError
from warpwatch.settings import Settings
from warpwatch.sources import Sources, imported_modules, parse_python

if TYPE_CHECKING:
    from warpwatch.worker.tools import Tools

console = Console()


def examine_definitions(settings: Settings, definitions: str, repository: Path, device: str) -> bool:
    """Prints a line for each variant on the first case of its operator, at the working tree of `repository`; whether
    all of them are right. definitions: as in --definitions, or the checkout itself."""
    from warpwatch.worker.devices import choose_device
    from warpwatch.worker.host import Host
    from warpwatch.worker.reporter import CannotRunError
    from warpwatch.worker.tools import Tools

    # Whoever types this command chose the code, whether a branch holds it or not.
    tools = Tools(Host(replace(settings, fork_isolation="none"), choose_device(device)))
    try:
        root = Path(git.git("rev-parse", "--show-toplevel", cwd=repository).strip())
        with tempfile.TemporaryDirectory(prefix="warpwatch-doctor-") as folder:
            sha = WorkingTree(root, Path(folder) / "index").commit()
            mirror = git.update_mirror(str(root), settings.home)
            git.fetch_commit(str(root), mirror, sha)
        is_inside = Path(definitions).resolve() == root.resolve()
        version = None if is_inside else newest_version(parse_source(definitions), settings.home)
        sources = Sources(mirror, version)
        operators = sources.operators(sha)
        if not operators:
            raise ProjectError(f"{definitions} defines no operator; `warpwatch init` writes a first one")
        measured = sources.measured(sha)
        gaps_of = {operator: find_gaps(sources.text(sha, operator) or "") for operator in operators}
        if measured is not None and (measured.build is not None or any(gaps_of.values())):
            # An import fails only after the build, which may take half an hour, and after every gap is filled.
            for module, place in find_missing(root, measured):
                install = f"{shlex.quote(sys.executable)} -m pip install {module}"
                text = f"{place} imports {module}, which is not installed; if the package needs it, {install}"
                console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
        wrong, said = [], set[str]()
        for operator in operators:
            console.print(operator, style="bold", markup=False, highlight=False)
            # What nobody has written yet is known without a process that fails on it.
            gaps = gaps_of[operator]
            for line, remedy in gaps:
                text = f"  to fill: {sources.folder(sha)}/{operator}.py, line {line}: {remedy}"
                console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
            if gaps or not _examine(tools, operator, root, sha, version, said):
                wrong.append(operator)
        return not wrong
    except (git.GitError, ProjectError, CannotRunError, ValueError, OSError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    finally:
        tools.close()


def find_missing(root: Path, measured: MeasuredCode) -> Iterator[tuple[str, str]]:
    """Modules that this interpreter lacks and measured packages of a checkout import when they are loaded, each with
    the first file that does so. Tests of a package are left out."""
    seen = {*measured.packages, *sys.stdlib_module_names, ""}
    for package in measured.packages:
        folder = root / measured.path / package
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
            file = path.relative_to(root)
            if any(part.startswith("test") for part in file.parts):
                continue
            for module in _imports_of(path):
                if module not in seen and find_spec(module) is None:
                    yield module, file.as_posix()
                seen.add(module)


def _imports_of(path: Path) -> Iterator[str]:
    """Modules that a file imports in any case, not those of a function or a condition; an empty text for its package's
    own."""
    try:
        statements = parse_python(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError, OSError):
        return
    yield from (module.split(".")[0] for node in statements for module in imported_modules(node))


def find_gaps(text: str) -> list[tuple[int, str]]:
    """The line and the remedy of each call of `gap` in an operator file; none where it cannot be parsed."""
    try:
        calls = [node for node in ast.walk(parse_python(text)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError):
        return []
    return [
        (call.lineno, call.args[0].value)
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "gap"
        and len(call.args) == 1
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    ]


def shorten_traceback(message: str) -> str:
    """The last line of a traceback, behind the last place in an operator file; any other message as it is."""
    if "Traceback (most recent call last)" not in message:
        return message
    last = message.strip().splitlines()[-1]
    if missing := re.fullmatch(r"ModuleNotFoundError: No module named '(\w+)'", last):
        last += f"; if the package needs it, {shlex.quote(sys.executable)} -m pip install {missing[1]}"
    places = re.findall(r'File "[^"]*/([^"/]+/[^"/]+\.py)", line (\d+)', message)
    # The file of a gap stands in its own message.
    if not places or last.startswith("NotImplementedError: "):
        return last.removeprefix("NotImplementedError: ")
    file, line = places[-1]
    return f"{file}, line {line}: {last}"


def _examine(
    tools: Tools, operator: str, root: Path, sha: str, version: DefinitionsVersion | None, said: set[str]
) -> bool:
    from warpwatch.worker.execution import execute
    from warpwatch.worker.reporter import CannotRunError

    job = JobRequest(JobKind.CHECK, str(root), sha, operator, JobSpec(case_limit=1), None, version)
    with tempfile.TemporaryDirectory(prefix="warpwatch-doctor-") as folder:
        try:
            with run_progress(console, is_quiet=True) as progress:
                outcome = execute(job, tools, progress, Path(folder))
        except CannotRunError as error:
            text = shorten_traceback(str(error)).strip()
            # Operators share a build, and its log is long.
            shown = "fails as the operator above does" if text in said else text
            said.add(text)
            console.print(f"  {shown}", style="red", markup=False, highlight=False, soft_wrap=True)
            return False
    table = ResultTable(tools.host.kind)
    table.add(JobKind.CHECK, outcome)
    for line, style in table.lines():
        console.print(f"  {line}", style=style, markup=False, highlight=False, soft_wrap=True)
    return all(finding.status in NO_FAILURE for finding in outcome.findings)
