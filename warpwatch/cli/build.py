"""`warpwatch build`: compile native code, for GPUs even without a GPU."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from warpwatch._toolchain import CUDA_ARCHS
from warpwatch.cli.app import app, exit_on
from warpwatch.project import FILE_NAME, Project, parse_project

if TYPE_CHECKING:
    from rich.table import Table

    from warpwatch.native import Built

SIDE_BY_SIDE = 2
"""Libraries built in parallel: while one waits for its longest source, another uses the idle cores."""
COLOURS = {"ok": "green", "build_failed": "red", "skipped": "yellow"}


class Target(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


@app.command()
def build(
    operators: list[str] = typer.Argument(None, metavar="[OPERATOR]...", help="Operators to build. Default: all."),
    target: Target | None = typer.Option(None, help="Build for this alone. Default: both."),
    fingerprints: bool = typer.Option(True, help="Compile C++ once more for the fingerprints of its machine code."),
    archs: list[int] = typer.Option(
        CUDA_ARCHS,
        "--arch",
        help="Build for this CUDA architecture, or several of them. Without the newest, nothing runs on later cards.",
    ),
) -> None:
    """Compile the native libraries of this checkout for the CPU and for every CUDA architecture, or those named.

    Needs nvcc, but no GPU.

    Exits 1 if a library does not compile, 2 if an operator or an architecture is unknown.
    """
    from rich.console import Console

    from warpwatch.project import ProjectError
    from warpwatch.settings import SettingError

    if unknown := set(archs) - set(CUDA_ARCHS):
        known = ", ".join(map(str, CUDA_ARCHS))
        raise typer.BadParameter(f"no CUDA architecture {min(unknown)}; choose from {known}", param_hint="--arch")
    with exit_on(ProjectError, SettingError):
        builds = _build_all(operators or [], [target] if target else list(Target), fingerprints, archs)
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(_builds_table(builds))
    if any(built.resources for _, _, built in builds):
        console.print(_kernels_table(builds))
    for operator, target, built in builds:
        if built.log and built.status != "ok":
            console.print(f"\n{operator} for {target}:\n{built.log}", markup=False, highlight=False)
    if any(built.status == "build_failed" for _, _, built in builds):
        raise typer.Exit(1)


def _build_all(
    names: list[str], targets: list[Target], fingerprints: bool, archs: list[int]
) -> list[tuple[str, Target, Built]]:
    """Builds as (operator, target, result)."""
    from concurrent.futures import ThreadPoolExecutor

    from warpwatch import native
    from warpwatch.settings import load_settings

    root, project = local_checkout()
    cache = load_settings().home / "builds"
    builds = []
    for target in targets:
        native.configure(root / project.native, cache, target, fingerprints=fingerprints, archs=archs)
        available = native.operators()
        unknown = sorted(set(names) - set(available))
        if unknown:
            folder = root / project.native
            typer.echo(
                f"no native sources for {', '.join(unknown)}; {folder} has {', '.join(available) or 'none'}", err=True
            )
            raise typer.Exit(2)
        chosen = names or available
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            builds += [
                (name, target, built) for name, built in zip(chosen, pool.map(native.build, chosen), strict=True)
            ]
    return sorted(builds, key=lambda entry: entry[:2])


def _builds_table(builds: list[tuple[str, Target, Built]]) -> Table:
    from rich.table import Table

    table = Table("operator", "target", "status", "cached", title="Builds")
    table.add_column("seconds", justify="right")
    for operator, target, built in builds:
        archs = list(dict.fromkeys(kernel.arch for kernel in built.resources if kernel.registers))
        status = f"[{COLOURS[built.status]}]{built.status}[/]"
        table.add_row(
            operator, " ".join([target, *archs]), status, "yes" if built.cached else "no", f"{built.seconds:.3f}"
        )
    return table


def _kernels_table(builds: list[tuple[str, Target, Built]]) -> Table:
    from rich.table import Table

    table = Table("operator", "kernel", "arch", title="Kernels")
    for heading in ("registers", "shared bytes", "spilled bytes", "code bytes"):
        table.add_column(heading, justify="right")
    table.add_column("machine code")
    for operator, _, built in builds:
        for kernel in built.resources:
            numbers = (
                (kernel.registers, kernel.shared_bytes, kernel.spill_bytes) if kernel.registers else ("–", "–", "–")
            )
            table.add_row(
                operator, kernel.name, kernel.arch, *map(str, numbers), str(kernel.code_bytes), kernel.code_hash or "–"
            )
    return table


def local_checkout() -> tuple[Path, Project]:
    """The nearest folder with a warpwatch.toml, from the current one upwards, else the operators that ship with the
    package."""
    here = Path.cwd()
    root = next(
        (folder for folder in (here, *here.parents) if (folder / FILE_NAME).is_file()),
        Path(__file__).parents[1] / "bundled",
    )
    description = root / FILE_NAME
    return root, parse_project(description.read_text(encoding="utf-8") if description.is_file() else None)
