"""Gives up what kernel code must not have, then becomes the child: `confine.py PLAN command…`.

It runs as a script between the parent and the child, because what it does (namespaces, limits, death with the parent)
belongs into a process of its own: in a `preexec_fn` it could deadlock a parent that has threads. Standard library
alone, no imports of ours. PLAN is JSON: {"isolation": "full" | "user" | "network" | "none", "hidden": [paths],
"writable": [paths], "limits": {"DATA": n, …}, "parent": pid or null}.

With "full", three processes stand between the parent and kernel code: this one, which ends as the child ends; the first
process of a new PID namespace, with which everything in it dies; and the child, its second process.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND = 1, 2, 4, 8, 0x1000
MS_REC_PRIVATE = 0x4000 | 0x40000
PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
SECURE_NO_ROOT = 0b101111
"""User 0 gets no capabilities by executing a program or changing its user, and nobody can undo that."""
CAPABILITY_VERSION_3 = 0x20080522
CAPABILITIES = 64
SYS_MOUNT_SETATTR = 442
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
MOUNT_ATTR_RDONLY = 1
SHARED_MEMORY_SHARE = 4
"""The child's own /dev/shm holds at most one part in so many of the machine's memory."""
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    plan = json.loads(sys.argv[1])
    isolate(plan["isolation"], plan["hidden"], plan["writable"])
    for name, value in plan["limits"].items():
        _lower_limit(getattr(resource, f"RLIMIT_{name}"), value)
    if plan["parent"] is not None:
        _die_with(plan["parent"])
    if plan["isolation"] == "full":
        _enter_process_namespace()
    if plan["isolation"] in ("full", "user"):
        _drop_capabilities()
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606


def isolate(isolation: str, hidden: list[str], writable: list[str]) -> None:
    """Leaves the network.

    With a user namespace the folders in `hidden` are covered as well; with "full" nothing but the folders in `writable`
    can be written to, and System V memory, /dev/shm and the host's name are the child's own.
    """
    if isolation == "network":
        _call(_libc.unshare(CLONE_NEWNET))
    if isolation not in ("user", "full"):
        return
    # The identity is kept, so files keep their owners; only privileges over the host are lost.
    uid, gid = os.getuid(), os.getgid()
    more = CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWPID if isolation == "full" else 0
    _call(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS | more))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _call(_libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None))
    if isolation == "full":
        _make_read_only(writable)
    for folder in hidden:
        _mount_empty(folder, "size=4k,mode=555", MS_RDONLY)


def _make_read_only(writable: list[str]) -> None:
    _set_attributes("/", MOUNT_ATTR_RDONLY, 0, AT_RECURSIVE)
    for folder in writable:
        _call(_libc.mount(os.fsencode(folder), os.fsencode(folder), None, MS_BIND, None))
        _set_attributes(folder, 0, MOUNT_ATTR_RDONLY, 0)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if Path("/dev/shm").is_dir():  # noqa: S108
        _mount_empty("/dev/shm", f"size={memory // SHARED_MEMORY_SHARE},mode=1777")  # noqa: S108


def _enter_process_namespace() -> None:
    """Returns in the second process of the new namespace; the others end as that one does."""
    _become_waiter(os.fork())
    # The first process must see its own /proc, must not outlive its parent, and collects what loses its parent.
    _call(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    _call(_libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None))
    _become_waiter(os.fork())
    _call(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def _drop_capabilities() -> None:
    """User 0 of a new user namespace may undo all of the above until its capabilities there are gone."""
    _call(_libc.prctl(PR_SET_SECUREBITS, SECURE_NO_ROOT, 0, 0, 0))
    for capability in range(CAPABILITIES):
        # Fails for the numbers beyond the last capability of this kernel.
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    _call(_libc.capset(struct.pack("Ii", CAPABILITY_VERSION_3, 0), bytes(24)))
    _call(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _become_waiter(child: int) -> None:
    """In the parent of `child`: waits for it and ends with its exit status, or by its signal. In `child`: returns."""
    if child == 0:
        return
    _close_descriptors()
    while True:
        try:
            pid, status = os.wait()
        except InterruptedError:
            continue
        if pid == child:
            break
    if os.WIFSIGNALED(status):
        # A first process ignores signals from its own namespace, so its waiter is told by an exit status.
        if os.getpid() == 1:
            os._exit(128 + os.WTERMSIG(status))
        _end_by(os.WTERMSIG(status))
    code = os.WEXITSTATUS(status)
    if os.getpid() != 1 and code > 128:
        _end_by(code - 128)
    os._exit(code)


def _end_by(number: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _close_descriptors() -> None:
    """Channels end when the child closes them, so whoever waits for it must not hold them open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.closerange(3, 4096)


def _mount_empty(folder: str, options: str, flags: int = 0) -> None:
    _call(_libc.mount(b"none", os.fsencode(folder), b"tmpfs", MS_NOSUID | MS_NODEV | flags, options.encode()))


def _set_attributes(folder: str, added: int, removed: int, flags: int) -> None:
    attributes = struct.pack("QQQQ", added, removed, 0, 0)
    _call(
        _libc.syscall(
            SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(folder), ctypes.c_uint(flags), attributes, ctypes.c_size_t(32)
        )
    )


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
