"""`warpwatch exam`: gives the planted cheats and their honest twins to other harnesses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from warpwatch.cli.app import app

console = Console()


@app.command()
def exam(
    harnesses: list[str] = typer.Argument(
        help="do_bench, torch_benchmark, kernelbench=CHECKOUT, kernelbot=CHECKOUT, flashinfer_bench, warpwatch_bench, "
        "or the path of a file with the functions `check` and `time`."
    ),
    device: str = typer.Option("cpu", help="cpu, cuda, cuda:1 …"),
    operators: str | None = typer.Option(None, help="Operators of the cheats, separated by commas. Default: all."),
    markdown: Path | None = typer.Option(None, help="Write the tables to this file as well."),
) -> None:
    """Let harnesses sit the exam: which planted cheats does each catch, and which honest variants does it accuse?

    An adapter asks a harness about one candidate: `check(reference, candidate, inputs)` returns whether it is right,
    `time(candidate, inputs)` the seconds of a call. `inputs(seed)` draws the arguments.
    """
    from warpwatch.worker.exam import ExamResult, as_markdown, candidates, sit

    names = [name.strip() for name in operators.split(",")] if operators else None
    rows = candidates(names)
    if not rows:
        _fail(f"no operator of the cheats has one of the names {operators}")
    for harness in harnesses:
        _expect_adapter(harness)
    results = []
    for harness in harnesses:
        adapter, _, checkout = harness.partition("=")
        result = ExamResult(Path(adapter).stem, [])
        try:
            with console.status(f"{adapter} on {device} …") as status:
                for sitting in sit(adapter, checkout, device, rows):
                    result.sittings.append(sitting)
                    status.update(f"{adapter} on {device}: {sitting.operator} {sitting.variant}")
        except (OSError, RuntimeError) as error:
            _fail(str(error))
        results.append(result)
        _show(result)
    if markdown is not None:
        markdown.write_text(as_markdown(results) + "\n", encoding="utf-8")


def _expect_adapter(harness: str) -> None:
    """Exits with 2 unless there is such an adapter, and its checkout."""
    from warpwatch.worker.proving import FOLDER

    folder = FOLDER.parent / "harness" / "adapters"
    known = sorted(path.stem for path in folder.glob("[a-z]*.py") if path.stem != "host_cuda")
    adapter, _, checkout = harness.partition("=")
    if adapter not in known and not (adapter.endswith(".py") and Path(adapter).is_file()):
        _fail(f"unknown harness {adapter!r}; choose from {', '.join(known)}, or name a file that ends in .py")
    if checkout and not Path(checkout).is_dir():
        _fail(f"{checkout} is not a folder: give the checkout of {adapter}")
    if adapter in ("kernelbench", "kernelbot") and not checkout:
        _fail(f"{adapter} is no package: write {adapter}=CHECKOUT with the folder of a clone")


def _fail(message: str) -> None:
    console.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(2)


def _show(result: object) -> None:
    """Prints the counts of one harness, the cheats whose time it believed, the honest variants that it accused, and why
    others did not run."""
    from warpwatch.worker.exam import ExamResult

    assert isinstance(result, ExamResult)
    console.print(
        f"{result.harness}: {len(result.caught)} of {len(result.cheats)} cheats caught, "
        f"{len(result.deceived)} believed to be faster than their honest twins; "
        f"{len(result.accused)} of {len(result.honest)} honest variants accused",
        style="bold",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("cheat", "believed time over that of its twin", box=None, pad_edge=False)
    for sitting in sorted(result.deceived, key=lambda sitting: result.ratio(sitting) or 0):
        table.add_row(f"{sitting.operator} {sitting.variant}", f"{result.ratio(sitting):.2g}")
    if result.deceived:
        console.print(table, highlight=False)
    for sitting in result.accused:
        text = f"accused, {sitting.operator} {sitting.variant}: {sitting.message or 'check returned False'}"
        console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    not_run = Counter(sitting.message for sitting in result.sittings if sitting.outcome == "not_run")
    for message, count in not_run.items():
        console.print(f"{count} not run: {message}", style="dim", markup=False, highlight=False, soft_wrap=True)
