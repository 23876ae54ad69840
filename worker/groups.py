"""Control groups for children, where this process may make some: a limit on all memory, shared memory included.

That takes control groups of version 2 and a group that was given to the worker alone, as systemd does with
`Delegate=yes`. The kernel lets no group that holds processes pass controllers on, so the worker first moves into a
group inside its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

CONTROLLERS = ("memory", "pids")
_REMOVE_SECONDS = 5.0


def find_own_group(process: Path = Path("/proc/self")) -> Path | None:
    """The folder of this process's control group, where it has the controllers and may make groups inside."""
    try:
        mounts = [line.split() for line in (process / "mounts").read_text().splitlines()]
        root = next(Path(fields[1]) for fields in mounts if fields[2] == "cgroup2")
        lines = (process / "cgroup").read_text().splitlines()
        name = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        controllers = (root / name / "cgroup.controllers").read_text().split()
    except (OSError, StopIteration):
        return None
    writable = os.access(root / name, os.W_OK) and os.access(root / name / "cgroup.procs", os.W_OK)
    return root / name if writable and set(CONTROLLERS) <= set(controllers) else None


def claim(own: Path | None) -> Path | None:
    """Makes `own` ready to hold groups of children; None where that cannot be."""
    if own is None:
        return None
    inner = own / f"worker-{os.getpid()}"
    try:
        inner.mkdir()
        (inner / "cgroup.procs").write_text(str(os.getpid()))
        (own / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
    except OSError:
        # Another process is in the same group.
        with contextlib.suppress(OSError):
            (own / "cgroup.procs").write_text(str(os.getpid()))
            inner.rmdir()
        return None
    return own


def open_group(parent: Path, memory_bytes: int | None, processes: int) -> Path:
    """A new group for one child."""
    group = parent / f"child-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    if memory_bytes is not None:
        (group / "memory.max").write_text(str(memory_bytes))
        # Absent where the kernel does not count swap.
        with contextlib.suppress(OSError):
            (group / "memory.swap.max").write_text("0")
        (group / "memory.oom.group").write_text("1")
    (group / "pids.max").write_text(str(processes))
    return group


def remove_group(group: Path) -> None:
    """Removes the group of an ended child."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while group.exists() and time.monotonic() < deadline:
        try:
            group.rmdir()
        except OSError:
            # Its last process is still being taken down.
            time.sleep(0.01)
