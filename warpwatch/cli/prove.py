"""`warpwatch prove`: self-tests. Planted bugs and benchmark cheats must be caught, correct variants must pass."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from warpwatch import __version__, git
from warpwatch.cli.app import app
from warpwatch.settings import SettingError, load_settings
from warpwatch.worker.reporter import SilentReporter

if TYPE_CHECKING:
    from warpwatch.contract.environment import Environment
    from warpwatch.worker.proving import Proof
    from warpwatch.worker.tools import Tools

console = Console()
_STYLES = {"caught": "none", "not_run": "dim", "otherwise": "yellow", "survived": "bold red"}


@app.command()
def prove(
    kind: str = typer.Argument(
        "all",
        help="mutants (planted bugs), cheaters (benchmark cheats), all (both), caches (results kept by value) or "
        "honest (correct variants that look like cheats).",
    ),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1 …; auto: the first GPU, else the CPU."),
    seeds: int = typer.Option(3, min=0, help="Seeds for the correct variants, which must raise no alarm."),
    operators: str | None = typer.Option(
        None, help="Operators of the planted faults, separated by commas. Default: all."
    ),
    load: int = typer.Option(0, min=0, max=1000, help="Run beside so many busy processes."),
    honest: int = typer.Option(
        0, min=0, help="Run the correct variants of a suite with benches at least so often besides, on other inputs."
    ),
    submit: bool = typer.Option(False, help="Publish the outcome on the Self-tests page of the server."),
) -> None:
    """Run the self-tests; exit 1 when a fault is missed or named wrongly, or a correct variant raises an alarm."""
    from warpwatch.worker.devices import choose_device
    from warpwatch.worker.host import Host
    from warpwatch.worker.proving import KINDS, LONG_KINDS, busy_processes
    from warpwatch.worker.reporter import CannotRunError
    from warpwatch.worker.tools import Tools

    try:
        if kind not in (*KINDS, "all", *LONG_KINDS):
            raise ValueError(f"unknown kind {kind!r}; choose from {', '.join([*KINDS, 'all', *LONG_KINDS])}")
        if submit and kind in LONG_KINDS:
            raise ValueError(f"--submit publishes {' and '.join(KINDS)}: leave it out for {kind}")
        if submit and load:
            raise ValueError("--submit publishes what an idle host finds: leave out --load, or --submit")
        names = [name.strip() for name in operators.split(",")] if operators else None
        tools = Tools(Host(load_settings(), choose_device(device)))
        try:
            with busy_processes(load):
                kinds = KINDS if kind == "all" else [kind]
                holds = [_prove(name, tools, seeds, names, honest, submit) for name in kinds]
        finally:
            tools.close()
    except (git.GitError, SettingError, CannotRunError, ValueError, OSError, RuntimeError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    raise typer.Exit(0 if all(holds) else 1)


def _prove(kind: str, tools: Tools, seeds: int, operators: list[str] | None, honest: int, submit: bool) -> bool:
    from warpwatch.cli.client import Client
    from warpwatch.worker.proving import prove

    client = Client(load_settings().server_url) if submit else None
    if client is not None:
        # Fails at once, not after minutes, if there is no server or its schema is outdated.
        client.get("/proofs")
    environment, _ = tools.identify(_StepReporter())
    with console.status(f"{kind} on {environment.device_name} …") as status:
        proof = prove(kind, tools, _StepReporter(status), seeds, operators, honest if kind != "mutants" else 0)
    _show(proof, environment)
    if client is not None:
        device = {"key": environment.device_key, "kind": environment.device_kind, "name": environment.device_name}
        client.post("/proofs", {**proof.to_json(), "device": device, "version": __version__})
        console.print(f"published at {client.url}/proofs", highlight=False)
    return proof.holds


def _show(proof: Proof, environment: Environment) -> None:
    """Prints one line per planted fault, with its message only if it was not caught."""
    console.print(f"{proof.kind} on {environment.device_name}", style="bold", highlight=False)
    rows = [
        (fault.outcome.replace("_", " "), f"{fault.operator} {fault.variant}", fault.caught_by)
        for fault in proof.faults
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for fault, row in zip(proof.faults, rows, strict=True):
        lines = fault.message.strip().splitlines() if fault.outcome != "caught" else []
        words = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)] + [
            ": ".join([fault.fault, *lines[:1]])
        ]
        console.print("  ".join(words), style=_STYLES[fault.outcome], markup=False, highlight=False, soft_wrap=True)
    _show_operators(proof)
    counts = Counter(fault.outcome for fault in proof.faults)
    ran = len(proof.faults) - counts["not_run"]
    elsewhere = f", {counts['not_run']} cannot run on this device" if counts["not_run"] else ""
    console.print(f"{counts['caught']} of {ran} {proof.kind} caught and named{elsewhere}", highlight=False)
    console.print(
        f"correct variants: {proof.clean_runs} runs over {proof.seeds} seeds passed, "
        f"{len(proof.false_alarms)} false alarms",
        highlight=False,
    )
    for alarm in proof.false_alarms:
        where = f"{alarm.operator} {alarm.variant} {alarm.case} seed {alarm.seed}"
        console.print(f"false alarm, {where}: {alarm.message}", style="red", markup=False, soft_wrap=True)


def _show_operators(proof: Proof) -> None:
    """Prints how many of each operator's planted faults were caught, of those that can run on this device."""
    table = Table("operator", proof.kind, "caught", box=None, pad_edge=False)
    for operator in dict.fromkeys(fault.operator for fault in proof.faults):
        outcomes = Counter(fault.outcome for fault in proof.faults if fault.operator == operator)
        table.add_row(operator, str(outcomes.total() - outcomes["not_run"]), str(outcomes["caught"]))
    console.print(table, highlight=False)


class _StepReporter(SilentReporter):
    """Shows only the current step."""

    def __init__(self, status: Any = None) -> None:
        self._status = status

    def log(self, text: str) -> None:
        if self._status is not None and text.startswith(("check", "bench", "build")):
            self._status.update(text[:100].replace("[", r"\["))
