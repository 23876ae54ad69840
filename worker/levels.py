"""Finds how far a host lets children be shut in, and keeps that from going down.

The strongest level that works is found by trying. Only a system call that the host refuses says that it cannot give a
level; whatever else goes wrong – no descriptors, no memory, no time – may be the doing of kernel code that runs
meanwhile. So that is tried again, and then the worker does not start. A level without namespaces is used only where a
person has chosen it by name, and the best level of a data folder is kept there, so that a lower one needs a person too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from warpwatch.worker.confine import REFUSED
from warpwatch.worker.reporter import CannotRunError
from warpwatch.worker.sandbox import BOOTSTRAP, DEVICES, MEMORY_SHARE, Confinement, run_confined, usable_memory
from warpwatch.worker.seccomp import build_filter

LEVELS = ("full", "user", "network", "none")
"""Every isolation, the strongest first."""
CHOSEN = {"cpu": ("full", "user"), "cuda": ("full",)}
"""Levels that a worker takes by itself, by the kind of device.

Not `user` on a GPU: CUDA names its threads in /proc, does not start where it cannot, and the host's /proc does not know
the process ids of the child's namespace. Without namespaces kernel code can read databases and keys.
"""
REFUSALS = frozenset({errno.EPERM, errno.EINVAL, errno.ENOSYS})
"""Error numbers of a system call that the host refuses."""
MANDATORY = ("map", "mount")
"""Calls that AppArmor and SELinux refuse with EACCES."""
TRIES = 4
PAUSE_SECONDS = 0.5
"""Before the second try; twice as long before each later one."""
_RECORD = "isolation-{}"
"""File of the data folder with the best level that children of one kind of device ever had there."""
_REPORT = re.compile(r"^confine: (\w+) (\d+) (.*)$", re.MULTILINE)
_LOOK = """
import os, sys
closed = [path for path in sys.argv[1:] if not os.access(path, os.R_OK | os.X_OK)]
sys.exit(f"a child cannot read {', '.join(closed)}" if closed else 0)
"""
_HELP = "docs/security.md, Isolation levels"


class Protection(StrEnum):
    """A protection from kernel code that a host may be unable to give; docs/security.md describes each protection."""

    NETWORK = "network"
    FILES = "files"
    PROCESSES = "processes"
    SYSTEM_CALLS = "system_calls"
    MEMORY = "memory"


class IsolationError(CannotRunError):
    """Children cannot be shut in as they must be; the message says what to do."""


@dataclass(frozen=True, slots=True)
class HostRefusal:
    """A system call that the host refuses, by its name, error number and object."""

    call: str
    code: int
    details: str

    def __str__(self) -> str:
        return f"{self.call} {self.details}: {os.strerror(self.code)}"

    @property
    def is_final(self) -> bool:
        """Whether the host can never give what was asked for, however often it is asked."""
        if self.code == errno.ENOSPC and self.call == "unshare":
            return _forbids_namespaces()
        return self.code in REFUSALS or (self.code == errno.EACCES and self.call in MANDATORY)


def confinement(
    home: Path,
    memory_bytes: int | None,
    hidden: tuple[Path, ...] = (),
    isolation: str = "auto",
    *,
    scratch_bytes: int | None = None,
    device_kind: str = "cpu",
    group: Path | None = None,
    shown: tuple[Path, ...] = (),
) -> Confinement:
    """The confinement asked for; "auto" is the strongest that this host allows. IsolationError where that is too
    little."""
    return Confinement(
        strongest_isolation(home, device_kind) if isolation == "auto" else isolation,
        memory_bytes or usable_memory() * 3 // 4,
        hidden,
        home,
        scratch_bytes or usable_memory() // MEMORY_SHARE,
        usable_memory() // MEMORY_SHARE,
        DEVICES[device_kind],
        filtered=filters_calls(),
        group=group,
        shown=shown,
    )


def missing_protections(confinement: Confinement) -> list[Protection]:
    """The protections from kernel code that are missing on this host."""
    present = {
        Protection.NETWORK: confinement.network_closed,
        Protection.FILES: confinement.has_namespaces,
        Protection.PROCESSES: confinement.isolation == "full",
        Protection.SYSTEM_CALLS: confinement.filtered,
        Protection.MEMORY: confinement.group is not None,
    }
    return [protection for protection, given in present.items() if not given]


def is_weaker(isolation: str, wanted: str) -> bool:
    """Whether one isolation promises less than another."""
    return LEVELS.index(isolation) > LEVELS.index(wanted)


@cache
def filters_calls() -> bool:
    """Whether this host lets a process filter its own system calls."""
    if not sys.platform.startswith("linux") or not build_filter():
        return False
    return find_refusal(replace(_least(Path("/")), filtered=True)) is None


@cache
def strongest_isolation(home: Path, device_kind: str = "cpu") -> str:
    """The strongest isolation in which children of this host can work. IsolationError where that is too little, or less
    than it was before in this data folder."""
    home.mkdir(parents=True, exist_ok=True)
    record = home / _RECORD.format(device_kind)
    best = _read_record(record)
    refusals = []
    for level in CHOSEN[device_kind] if sys.platform.startswith("linux") else ():
        refusal = find_refusal(replace(_least(home), isolation=level))
        if refusal is None:
            break
        refusals.append(f"{level}: {refusal}")
    else:
        reasons = "; ".join(refusals) or "they need Linux"
        raise IsolationError(
            f"this host gives children on {device_kind} no namespaces ({reasons}). Allow them as {_HELP}, says, or "
            "accept that kernel code can read and change what this user can: set WARPWATCH_ISOLATION=none, or =network "
            "as root"
        )
    if best is not None and is_weaker(level, best):
        raise IsolationError(
            f"children on {device_kind} had the isolation {best} in {home}, and this host now gives {level} "
            f"({'; '.join(refusals)}). Give them what they had, as {_HELP}, says, or accept less: set "
            f"WARPWATCH_ISOLATION={level}"
        )
    if best != level:
        partial = record.with_name(f"{record.name}.{os.getpid()}")
        partial.write_text(f"{level}\n", encoding="ascii")
        partial.replace(record)
    return level


def find_refusal(confinement: Confinement) -> HostRefusal | None:
    """Finds the system call that the host refuses to this confinement; None where a child works in the confinement.
    Raises IsolationError where the probe could not find out."""
    # A root without its powers may be shut out of folders that belong to others, so the probe looks at what a child
    # needs.
    words = [sys.executable, "-I", "-S", "-c", _LOOK, sys.executable, str(BOOTSTRAP.parent)]
    problem = ""
    for pause in (0.0, *(PAUSE_SECONDS * 2**number for number in range(TRIES - 1))):
        time.sleep(pause)
        try:
            done = run_confined(confinement, words)
        except (OSError, subprocess.SubprocessError) as error:
            problem = str(error)
            continue
        if done.returncode == 0:
            return None
        report = _REPORT.search(done.stderr) if done.returncode == REFUSED else None
        if report is not None:
            refusal = HostRefusal(report[1], int(report[2]), report[3])
            if refusal.is_final:
                return refusal
            problem = str(refusal)
        else:
            problem = next(reversed(done.stderr.strip().splitlines()), f"exit status {done.returncode}")
    raise IsolationError(
        f"no child could be started with the isolation {confinement.isolation}, in {TRIES} tries: {problem}. Free what "
        "is used up (files, processes, memory: see ulimit -a), let this user read the interpreter, or name a folder "
        "that the interpreter needs in WARPWATCH_VISIBLE; to accept less isolation, set WARPWATCH_ISOLATION"
    )


def _least(home: Path) -> Confinement:
    return Confinement("none", None, (), home, 2**20, 2**20, filtered=False)


def _forbids_namespaces() -> bool:
    """Whether the administrator allows nobody a namespace, rather than that all of them are in use."""
    for file in Path("/proc/sys/user").glob("max_*_namespaces"):
        with contextlib.suppress(OSError):
            if file.read_text().strip() == "0":
                return True
    return False


def _read_record(file: Path) -> str | None:
    try:
        level = file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError) as error:
        raise IsolationError(f"{file} cannot be read: {error}") from None
    if level not in LEVELS:
        raise IsolationError(f"{file} must hold one of {', '.join(LEVELS)}; write the level that children must have")
    return level
