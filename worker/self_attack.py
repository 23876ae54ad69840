"""Attacks this host from a child of each isolation level, for `warpwatch doctor`.

The targets are made for this: a socket, a FIFO, files and processes of this user, and a folder that looks like a
worker's. Nothing else of the host is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from warpwatch.worker import levels
from warpwatch.worker.attacks import ATTACKS, READY
from warpwatch.worker.levels import IsolationError
from warpwatch.worker.sandbox import Confinement, Jail

SCRATCH_BYTES = 2**23
"""Of a child that tries to fill it."""
MEMORY_BYTES = 2**30
_SECONDS = 60.0
_SCRIPT = Path(__file__).with_name("attacks.py")
_VICTIM = "import ctypes, sys; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print(flush=True); sys.stdin.read()"
"""A process that may not be dumped, as a worker."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of the attacks: paths, a port, process ids. is_starved: whether no child starts while another child holds
    as many descriptors as the host allows."""

    port: int
    abstract: str
    socket: str
    relative_socket: str
    fifo: str
    worktree: str
    note: str
    process: int
    worker: int
    is_starved: bool = False


@dataclass(frozen=True, slots=True)
class LevelReport:
    """The results of the attacks in one isolation level. refusal: why this host refuses the level, "" where the host
    accepts the level. reached: whether each attack worked, by the name of the attack."""

    level: str
    refusal: str
    reached: dict[str, bool]

    @property
    def broken_promises(self) -> list[str]:
        """Attacks that worked although the level promises to stop them."""
        return [attack.name for attack in ATTACKS if self.level in attack.stopped_at and self.reached.get(attack.name)]


def attack_host() -> Iterator[LevelReport]:
    """Tries every attack in every level, the strongest first."""
    with tempfile.TemporaryDirectory(prefix="warpwatch-doctor-") as folder, _targets(Path(folder)) as targets:
        home = Path(folder, "home")
        for level in levels.LEVELS:
            confinement = Confinement(
                level, MEMORY_BYTES, (), home, SCRATCH_BYTES, SCRATCH_BYTES, filtered=levels.filters_calls()
            )
            try:
                refusal = levels.find_refusal(confinement)
            except IsolationError as error:
                yield LevelReport(level, str(error), {})
                continue
            if refusal is not None:
                yield LevelReport(level, str(refusal), {})
                continue
            reached = _attack(confinement, replace(targets, is_starved=_starves(confinement)))
            yield LevelReport(level, "", reached)


@contextlib.contextmanager
def _targets(folder: Path) -> Iterator[Targets]:
    deep = folder / "a/b/c/d"
    worktree, note = folder / "home/worktrees/other/kernel.py", folder / "note"
    for path in (deep, worktree.parent):
        path.mkdir(parents=True)
    for path in (worktree, note):
        path.write_text("of somebody else\n")
    os.mkfifo(deep / "fifo")
    with contextlib.ExitStack() as stack:
        families = (socket.AF_INET, socket.AF_UNIX, socket.AF_UNIX, socket.AF_UNIX)
        tcp, abstract, bound, relative = (stack.enter_context(socket.socket(family)) for family in families)
        name = f"warpwatch-doctor-{os.getpid()}-{time.monotonic_ns()}"
        tcp.bind(("127.0.0.1", 0))
        abstract.bind(f"\0{name}")
        bound.bind(str(folder / "socket"))
        # The kernel lists a socket by the path that it was bound with, and this one's is relative.
        place = os.open(deep, os.O_PATH)
        here = os.open(".", os.O_PATH)
        try:
            os.fchdir(place)
            relative.bind("socket")
        finally:
            os.fchdir(here)
            os.close(here)
            os.close(place)
        for server in (tcp, abstract, bound, relative):
            server.listen(100)
        sleeper = stack.enter_context(_running("import sys; print(flush=True); sys.stdin.read()"))
        worker = stack.enter_context(_running(_VICTIM))
        yield Targets(
            tcp.getsockname()[1],
            name,
            str(folder / "socket"),
            str(deep / "socket"),
            str(deep / "fifo"),
            str(worktree),
            str(note),
            sleeper.pid,
            worker.pid,
        )


@contextlib.contextmanager
def _running(code: str) -> Iterator[subprocess.Popen[bytes]]:
    command, pipe = [sys.executable, "-I", "-S", "-c", code], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env={"PASSWORD": "secret"}) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def _start(jail: Jail, targets: dict[str, object]) -> subprocess.Popen[str]:
    command = jail.command([sys.executable, "-I", "-S", str(_SCRIPT), json.dumps(targets)], Path("/"))
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            command,
            pass_fds=jail.passed,
            env=jail.environment(),
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    finally:
        jail.launched()


def _starves(confinement: Confinement) -> bool:
    """Whether no other child of this level starts while one holds as many descriptors in flight as it can."""
    jail = Jail(confinement)
    try:
        with _start(jail, {"hold": True}) as holder:
            assert holder.stdout is not None
            try:
                holds = holder.stdout.readline().strip() == READY
                return not holds or levels.find_refusal(confinement) is not None
            except IsolationError:
                return True
            finally:
                jail.kill(holder.pid)
    finally:
        jail.close()


def _attack(confinement: Confinement, targets: Targets) -> dict[str, bool]:
    jail = Jail(confinement)
    try:
        with _start(jail, asdict(targets)) as attacker:
            try:
                printed, complaints = attacker.communicate(timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                printed, complaints = "", f"no answer within {_SECONDS:g} s"
            finally:
                jail.kill(attacker.pid)
    finally:
        jail.close()
    try:
        reached = json.loads(printed)
    except ValueError:
        raise IsolationError(
            f"the attacks of {confinement.isolation} could not be tried: {complaints[-500:]}"
        ) from None
    return {attack.name: bool(reached[attack.name]) for attack in ATTACKS}
