"""Commands that say what this machine has and lacks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from warpwatch.cli.app import app, exit_on
from warpwatch.cli.client import asking
from warpwatch.settings import SettingError, Settings, load_settings

if TYPE_CHECKING:
    from warpwatch.worker.devices import LocalDevice
    from warpwatch.worker.self_attack import LevelReport

device_app = typer.Typer(no_args_is_help=True, help="Devices that the server knows.")
app.add_typer(device_app, name="device")


@device_app.command("add")
def add_device(
    key: str = typer.Argument(..., help="Model in lower case with dashes, such as nvidia-h200."),
    elastic: bool = typer.Option(False, help="A scheduler starts workers when jobs wait, so jobs may be queued now."),
    kind: str = typer.Option("cuda", help="cpu or cuda."),
    name: str | None = typer.Option(None, help="Name for people. Default: what the first worker says, until then KEY."),
) -> None:
    """Make a device known before a worker was there, or change whether it is elastic."""
    with asking() as client:
        row = client.post("/devices", {"key": key, "kind": kind, "name": name, "is_elastic": elastic})
        typer.echo(f"{row['key']}\t{row['name']}\t{'elastic' if row['is_elastic'] else 'not elastic'}")


@device_app.command("list")
def list_devices() -> None:
    """List devices with their workers and jobs."""
    with asking() as client:
        for row in client.get("/devices")["items"]:
            counts = f"{row['workers']} workers\t{row['queued']} queued\t{row['running']} running"
            typer.echo("\t".join([row["key"], counts, *(["elastic"] if row["is_elastic"] else [])]))


REMEDIES = {
    "network": "allow network namespaces: run as root, or allow user namespaces",
    "files": "allow user namespaces (docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined)",
    "processes": "allow a /proc of its own (docker run --security-opt systempaths=unconfined)",
    "memory": "shared memory is not limited: run the worker in a control group of its own (systemd: Delegate=yes)",
    "system_calls": "use a kernel with seccomp filters, on x86-64 or aarch64",
}
"""Remedies for a protection that the host does not give."""


@dataclass(frozen=True, slots=True)
class Examination:
    """One thing that was looked at.

    remedy: "" where it is fine. needed: whether nothing can be measured without it.
    """

    name: str
    result: str
    remedy: str = ""
    needed: bool = False


@app.command()
def doctor(
    definitions: str | None = typer.Argument(
        None, metavar="[PATH_OR_URL[@REF]]", help="Definitions to examine in place of the machine; . for the checkout."
    ),
    repository: Path = typer.Option(Path(), help="With definitions: a checkout of the code that they measure."),
    device: str = typer.Option("auto", help="With definitions: cpu, cuda, cuda:1 …; auto for the first GPU if any."),
) -> None:
    """Say what this machine has and lacks: compilers, devices, database, and how far it shuts kernel code in.

    Attacks this machine from a process of each isolation level, and says which attacks are stopped. Exits 1 if
    something is missing without which nothing can be measured, or if a level does not stop what it promises to stop.

    With definitions, checks the first case of each operator with each of its variants instead, at the files as they are
    in the checkout. Exits 1 if a reference or variant is wrong.
    """
    with exit_on(SettingError):
        settings = load_settings()
    if definitions is not None:
        from warpwatch.cli.definitions_doctor import examine_definitions

        raise typer.Exit(int(not examine_definitions(settings, definitions, repository, device)))
    examinations = list(_examine(settings))
    width = max(len(examination.name) for examination in examinations)
    for examination in examinations:
        mark = "ok" if not examination.remedy else "missing" if examination.needed else "note"
        typer.echo(f"{mark:<8}{examination.name:<{width}}  {examination.result}")
        if examination.remedy:
            typer.echo(f"{'':<8}{'':<{width}}  → {examination.remedy}")
    keeps_promises = _show_attacks()
    if not keeps_promises or any(examination.needed and examination.remedy for examination in examinations):
        raise typer.Exit(1)


def _show_attacks() -> bool:
    """Prints what each isolation level stops here; whether all of them stop what they promise to stop."""
    if not sys.platform.startswith("linux"):
        return True
    from warpwatch.worker.attacks import ATTACKS
    from warpwatch.worker.levels import IsolationError
    from warpwatch.worker.self_attack import attack_host

    try:
        reports = list(attack_host())
    except (IsolationError, OSError) as error:
        typer.echo(f"attacks could not be tried: {error}")
        return False
    width = max(len(attack.name) for attack in ATTACKS)
    typer.echo(f"\n{'attack from a child':<{width}}" + "".join(f"  {report.level:<8}" for report in reports))
    for attack in ATTACKS:
        words = [_describe_attack(report, attack.name) for report in reports]
        typer.echo(f"{attack.name:<{width}}" + "".join(f"  {word:<8}" for word in words))
    for report in reports:
        if report.refusal:
            typer.echo(f"– this host does not give {report.level}: {report.refusal}")
        if report.broken_promises:
            typer.echo(f"missing {report.level} does not hold: {', '.join(report.broken_promises)}")
    return not any(report.broken_promises for report in reports)


def _describe_attack(report: LevelReport, name: str) -> str:
    if report.refusal:
        return "–"
    if not report.reached[name]:
        return "stopped"
    return "BROKEN" if name in report.broken_promises else "reached"


def _examine(settings: Settings) -> Iterator[Examination]:
    yield Examination("python", f"{sys.version.split()[0]}, {sys.executable}")
    git = shutil.which("git")
    yield Examination("git", git or "none", "" if git else "install git", needed=True)
    yield from _compilers(settings)
    from warpwatch.worker.devices import find_devices

    devices = find_devices()
    yield from _devices(devices)
    yield _home(settings.home)
    yield from _images(settings.home)
    yield _database(settings)
    yield from _isolation(settings, sorted({device.name.partition(":")[0] for device in devices}))


def _compilers(settings: Settings) -> Iterator[Examination]:
    from warpwatch import _toolchain

    cache = settings.home / "builds"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        version = _toolchain.torch().version
        yield Examination("torch", version)
    except OSError:
        return
    except _toolchain.ToolMissingError as missing:
        yield Examination("torch", "none", str(missing), needed=True)
    try:
        cxx = _toolchain.cxx_compiler(cache)
        yield Examination("C++ compiler", f"{cxx.path}, {cxx.version.splitlines()[0]}")
        yield Examination("ninja", _toolchain.ninja())
    except _toolchain.ToolMissingError as missing:
        yield Examination("native code", "cannot be built", str(missing))
    nvcc = _toolchain.cuda_compiler(cache)
    release = nvcc.version.strip().splitlines()[-1] if nvcc else "none"
    remedy = "" if nvcc else "native CUDA code is skipped; put nvcc on PATH, or install the extra nvcc"
    yield Examination("CUDA compiler", f"{nvcc.path}, {release}" if nvcc else release, remedy)


def _devices(devices: Sequence[LocalDevice]) -> Iterator[Examination]:
    for device in devices:
        yield Examination("device", f"{device.name}, {device.model}")
    if len(devices) == 1 and Path("/proc/driver/nvidia").exists():
        yield Examination("device", "no GPU answers", "nvidia-smi -L must list it")


def _home(home: Path) -> Examination:
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free / 2**30
    writable = os.access(home, os.W_OK)
    remedy = "" if writable and free > 1 else "set WARPWATCH_HOME to a writable folder with more than 1 GiB free"
    return Examination("home", f"{home}, {free:.1f} GiB free", remedy, needed=not writable)


def _images(home: Path) -> Iterator[Examination]:
    """Of a worker that allows container images."""
    from warpwatch.worker.toolchains import ToolchainError, read_images

    try:
        allowed = read_images(home)
    except ToolchainError as error:
        yield Examination("images", "none can be used", str(error))
        return
    podman = shutil.which("podman")
    remedy = "" if podman else "install podman and uidmap; jobs that ask for an image fail"
    if allowed:
        yield Examination("images", f"{len(allowed)} allowed, {podman or 'no podman'}", remedy)


def _database(settings: Settings) -> Examination:
    try:
        from warpwatch.cli.database import database_url
        from warpwatch.db.errors import EngineError
        from warpwatch.db.migrate import pending
    except ModuleNotFoundError as error:
        return Examination("database", f"{error.name} is not installed", "only `warpwatch run` works without it")
    kind = "PostgreSQL" if settings.database_url else "embedded PostgreSQL"
    try:
        with database_url(settings) as url:
            missing = pending(url)
    except EngineError as error:
        return Examination("database", f"{kind} does not answer", str(error))
    return Examination("database", kind, f"{missing} migrations are due: warpwatch migrate" if missing else "")


def _isolation(settings: Settings, device_kinds: Sequence[str]) -> Iterator[Examination]:
    """For each kind of device, because CUDA needs more of a child than a CPU does."""
    from warpwatch.worker import groups, levels

    for kind in device_kinds:
        try:
            confinement = levels.confinement(
                settings.home,
                settings.memory_bytes,
                isolation=settings.isolation,
                device_kind=kind,
                group=groups.find_own_group(),
            )
        except levels.IsolationError as error:
            yield Examination("isolation", f"none that is allowed, on {kind}", str(error), needed=True)
            continue
        refused = levels.is_weaker(confinement.isolation, settings.fork_isolation)
        remedy = f"commits that no branch holds are refused below {settings.fork_isolation}" if refused else ""
        yield Examination("isolation", f"{confinement.isolation}, on {kind}", remedy)
        for protection in levels.missing_protections(confinement):
            yield Examination("protection", f"none of {protection.replace('_', ' ')}, on {kind}", REMEDIES[protection])
