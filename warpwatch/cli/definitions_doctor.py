"""Examines definitions of operators: runs each reference and each variant once and says what is wrong."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
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
from warpwatch.project import ProjectError
from warpwatch.settings import Settings
from warpwatch.sources import Sources

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
        operators = Sources(mirror, version).operators(sha)
        if not operators:
            raise ProjectError(f"{definitions} defines no operator; `warpwatch init` writes a first one")
        wrong = [operator for operator in operators if not _examine(tools, operator, root, sha, version)]
        return not wrong
    except (git.GitError, ProjectError, CannotRunError, ValueError, OSError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    finally:
        tools.close()


def shorten_traceback(message: str) -> str:
    """The last line of a traceback, behind the last place in an operator file; any other message as it is."""
    if "Traceback (most recent call last)" not in message:
        return message
    last = message.strip().splitlines()[-1]
    places = re.findall(r'File "[^"]*/([^"/]+/[^"/]+\.py)", line (\d+)', message)
    # The file of a gap stands in its own message.
    if not places or last.startswith("NotImplementedError: "):
        return last.removeprefix("NotImplementedError: ")
    file, line = places[-1]
    return f"{file}, line {line}: {last}"


def _examine(tools: Tools, operator: str, root: Path, sha: str, version: DefinitionsVersion | None) -> bool:
    from warpwatch.worker.execution import execute
    from warpwatch.worker.reporter import CannotRunError

    console.print(operator, style="bold", markup=False, highlight=False)
    job = JobRequest(JobKind.CHECK, str(root), sha, operator, JobSpec(case_limit=1), None, version)
    with tempfile.TemporaryDirectory(prefix="warpwatch-doctor-") as folder:
        try:
            with run_progress(console, is_quiet=True) as progress:
                outcome = execute(job, tools, progress, Path(folder))
        except CannotRunError as error:
            console.print(
                f"  {shorten_traceback(str(error))}", style="red", markup=False, highlight=False, soft_wrap=True
            )
            return False
    table = ResultTable(tools.host.kind)
    table.add(JobKind.CHECK, outcome)
    for line, style in table.lines():
        console.print(f"  {line}", style=style, markup=False, highlight=False, soft_wrap=True)
    return all(finding.status in NO_FAILURE for finding in outcome.findings)
