"""Gives up what kernel code must not have, then becomes the child: `confine.py PLAN command…`.

It runs as a script between the parent and the child, because what it does (namespaces, limits, death with the parent)
belongs into a process of its own: in a `preexec_fn` it could deadlock a parent that has threads. Standard library
alone, no imports of ours. PLAN is JSON: {"isolation": "user" | "network" | "none", "hidden": [paths], "limits":
{"DATA": n, …}, "parent": pid or null}.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
MS_REC_PRIVATE = 0x4000 | 0x40000
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    plan = json.loads(sys.argv[1])
    isolate(plan["isolation"], plan["hidden"])
    for name, value in plan["limits"].items():
        _lower_limit(getattr(resource, f"RLIMIT_{name}"), value)
    if plan["parent"] is not None:
        _die_with(plan["parent"])
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606


def isolate(isolation: str, hidden: list[str]) -> None:
    """Leaves the network; with a user namespace also covers the folders that hold the database."""
    if isolation == "user":
        # The identity is kept, so files keep their owners; only privileges over the host are lost.
        uid, gid = os.getuid(), os.getgid()
        _call(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        _call(_libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None))
        for folder in hidden:
            _call(_libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, b"size=4k,mode=000"))
    elif isolation == "network":
        _call(_libc.unshare(CLONE_NEWNET))


def _lower_limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent dies. The parent may have died before that was asked for."""
    _call(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(1)


def _call(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    main()
