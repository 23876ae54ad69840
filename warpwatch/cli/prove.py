"""`warpwatch prove`: shows that what checks and times kernels finds every fault that was planted for it, and no other."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from warpwatch import __version__, git
from warpwatch.cli import app
from warpwatch.settings import SettingError, load_settings

if TYPE_CHECKING:
    from warpwatch.contract.environment import Environment
    from warpwatch.worker.checkout import Tools
    from warpwatch.worker.proving import Proof

console = Console()
_STYLES = {"caught": "none", "not_run": "dim", "otherwise": "yellow", "survived": "bold red"}


@app.command()
def prove(
    kind: str = typer.Argument("all", help="mutants (wrong results), cheaters (wrong times) or all."),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1 …; auto takes the first GPU if there is one."),
    seeds: int = typer.Option(3, min=0, help="Seeds that the right variants beside them are checked with."),
    operators: str | None = typer.Option(
        None, help="Operators of the adversaries, separated by commas; all by default."
    ),
    submit: bool = typer.Option(False, help="Show the outcome on the server's page of proofs."),
) -> None:
    """Run planted faults and deliberate cheats; exit 1 when one is not caught and named, or when something right is
    accused."""
    from warpwatch.worker.checkout import Host, Tools
    from warpwatch.worker.devices import choose_device
    from warpwatch.worker.proving import KINDS
    from warpwatch.worker.reporter import CannotRunError

    try:
        if kind not in (*KINDS, "all"):
            raise ValueError(f"there are no {kind!r}; choose from {', '.join(KINDS)}, all")
        wanted = [word.strip() for word in operators.split(",")] if operators else None
        tools = Tools(Host(load_settings(), choose_device(device)))
        try:
            holds = [_prove(one, tools, seeds, wanted, submit) for one in (KINDS if kind == "all" else [kind])]
        finally:
            tools.close()
    except (git.GitError, SettingError, CannotRunError, ValueError, OSError, RuntimeError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    raise typer.Exit(0 if all(holds) else 1)


def _prove(kind: str, tools: Tools, seeds: int, operators: list[str] | None, submit: bool) -> bool:
    from warpwatch.cli.client import Client
    from warpwatch.worker.proving import prove

    client = Client(load_settings().server_url) if submit else None
    if client is not None:
        # Better to hear now than in minutes that there is no server, or none with these tables.
        client.get("/proofs")
    environment, _ = tools.identify(_Quiet())
    with console.status(f"{kind} on {environment.device_name} …") as status:
        proof = prove(kind, tools, _Quiet(status), seeds, operators)
    _show(proof, environment)
    if client is not None:
        client.post("/proofs", _body(proof, environment))
        console.print(f"shown at {client.url}/proofs", highlight=False)
    return proof.holds


def _body(proof: Proof, environment: Environment) -> dict[str, Any]:
    device = {"key": environment.device_key, "kind": environment.device_kind, "name": environment.device_name}
    return {**asdict(proof), "device": device, "version": __version__}


def _show(proof: Proof, environment: Environment) -> None:
    """A line for each, in columns that no narrow terminal breaks; what was said of it only where it was not caught."""
    console.print(f"{proof.kind} on {environment.device_name}", style="bold", highlight=False)
    rows = [
        (exhibit.outcome.replace("_", " "), f"{exhibit.operator} {exhibit.variant}", exhibit.caught_by)
        for exhibit in proof.exhibits
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for exhibit, row in zip(proof.exhibits, rows, strict=True):
        said = exhibit.message.strip().splitlines() if exhibit.outcome != "caught" else []
        words = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)] + [
            ": ".join([exhibit.fault, *said[:1]])
        ]
        console.print("  ".join(words), style=_STYLES[exhibit.outcome], markup=False, highlight=False, soft_wrap=True)
    counts = Counter(exhibit.outcome for exhibit in proof.exhibits)
    ran = len(proof.exhibits) - counts["not_run"]
    elsewhere = f", {counts['not_run']} cannot run on this device" if counts["not_run"] else ""
    console.print(f"{counts['caught']} of {ran} {proof.kind} caught and named{elsewhere}", highlight=False)
    console.print(
        f"right variants: {proof.innocent} runs over {proof.seeds} seeds found nothing, {len(proof.accused)} accused",
        highlight=False,
    )
    for accused in proof.accused:
        where = f"{accused.operator} {accused.variant} {accused.case} seed {accused.seed}"
        console.print(
            f"{where} is right and was called wrong: {accused.message}", style="red", markup=False, soft_wrap=True
        )


class _Quiet:
    """A reporter that shows the newest step alone."""

    def __init__(self, status: Any = None) -> None:
        self._status = status

    def log(self, text: str) -> None:
        if self._status is not None and text.startswith(("check", "bench", "build")):
            self._status.update(text[:100].replace("[", r"\["))

    def progress(self, done: int, total: int, text: str) -> None:
        """Steps show in the log."""

    def should_stop(self) -> str | None:
        return None
