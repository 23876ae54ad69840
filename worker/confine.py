"""Gives up what kernel code must not have, then becomes the child: `confine.py PLAN command…`.

It runs as a script between the parent and the child, because what it does (namespaces, limits, death with the parent)
belongs into a process of its own: in a `preexec_fn` it could deadlock a parent that has threads. A child that
`template.py` forked calls `confine` itself. This file needs the standard library alone, and the modules of it that
import neither `re` nor `enum`, which would double the time of a start. PLAN is the descriptor of a file with a
marshalled dictionary, written by `sandbox.Jail`:

isolation – "full" | "user" | "network" | "none".
root – what the child sees of the host: (kind, path, source) as in root.py, outer folders first.
devices – nodes below /dev that it gets, by name.
scratch, scratch_bytes – where its own temporary folder is mounted, and its size.
shared_bytes – size of its own /dev/shm.
channel – descriptor of the socket on which the parent gets the temporary folder and the end of the process namespace.
words – its command line. folder – where it starts. limits – {"DATA": n, …}.
filter – the system call filter in hex, "" for none. group – folder of its control group, "" for none.
parent – id of the process with which it dies, or null.

A system call that the host refuses is reported on standard error as `confine: CALL ERRNO DETAILS`, with the exit status
REFUSED, before any code of a commit runs.

With namespaces, three processes stand between the parent and kernel code: this one, which ends as the child ends; the
first process of a new PID namespace, with which everything in it dies; and the child, its second process.
"""

from __future__ import annotations

import _socket
import ctypes
import marshal
import os
import resource
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC = 1, 2, 4, 8, 0x1000, 0x4000
MS_PRIVATE = 0x40000
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
SIGKILL, SIGSTOP = 9, 19
ETOOMANYREFS = 109
SEND_TRIES, SEND_PAUSE_SECONDS = 50, 0.1
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
SECURE_NO_ROOT = 0b101111
"""User 0 gets no capabilities by executing a program or changing its user, and nobody can undo that."""
CAPABILITY_VERSION_3 = 0x20080522
CAPABILITIES = 64
FILE_CAPABILITIES = (0, 1, 2, 3)
"""chown, ignoring permissions (twice) and owners of files: what a root needs to reach the files of other users."""
SYS_MOUNT_SETATTR = 442
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
CLOSED = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
MNT_DETACH = 2
REFUSED = 125
"""Exit status where the host refuses a system call."""
ROOT_BYTES = "4m"
"""Size of a root that holds folders and links alone."""
SCRATCH_FILES = 2**18
"""Files and folders in the temporary folder; each takes some 1 KiB of memory."""
OUT_OF_MEMORY_SCORE = "1000"
"""The kernel ends this process first when the machine runs out of memory, and not the database."""
_libc = ctypes.CDLL(None, use_errno=True)


class CallError(OSError):
    """A system call failed. call: its name; details: on what."""

    def __init__(self, code: int, call: str, details: str) -> None:
        super().__init__(code, f"{call} {details}: {os.strerror(code)}")
        self.call = call
        self.details = details


def main() -> None:
    try:
        confine(read_plan(int(sys.argv[1])))
    except CallError as error:
        os.write(2, f"confine: {error.call} {error.errno} {error.details}\n".encode(errors="replace"))
        os._exit(REFUSED)
    try:
        os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606
    except OSError as error:
        words = f"{sys.argv[2]} does not start in a child: {os.strerror(error.errno or 0)}"
        os.write(2, f"{words}; if this host has it, show its folder with WARPWATCH_VISIBLE\n".encode(errors="replace"))
        os._exit(127)


def read_plan(descriptor: int) -> dict[str, Any]:
    with open(descriptor, "rb") as file:
        plan: dict[str, Any] = marshal.load(file)  # noqa: S302 - the parent wrote it
    return plan


def confine(plan: dict[str, Any]) -> None:
    """Returns in the process that may run kernel code, which this one is or has forked."""
    if plan["group"]:
        _write(os.path.join(plan["group"], "cgroup.procs"), "0")  # noqa: PTH118 - pathlib takes 5 ms to import
    _write("/proc/self/oom_score_adj", OUT_OF_MEMORY_SCORE)
    # A child of the same user may hold as many descriptors in flight as its own limit says, so that of a process that
    # sends some to the parent must be above it.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    namespaces = plan["isolation"] in ("full", "user")
    if plan["isolation"] == "network":
        _call(_libc.unshare(CLONE_NEWNET), "unshare", "network")
    scratch = _enter_namespaces(plan) if namespaces else -1
    if plan["parent"] is not None:
        _call(_libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "prctl", "parent")
        # The parent may have died before that was asked for.
        if os.getppid() != plan["parent"]:
            os._exit(1)
    if namespaces:
        _enter_process_namespace(plan, scratch)
    else:
        _give_up(plan, FILE_CAPABILITIES)
    os.chdir(plan["folder"])


def _enter_namespaces(plan: dict[str, Any]) -> int:
    """Leaves the host's users, network, mounts, System V memory, name and, for its children, processes.

    Returns a descriptor of the child's temporary folder.
    """
    # The identity is kept, so files keep their owners; only privileges over the host are lost.
    uid, gid = os.getuid(), os.getgid()
    kinds = CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWPID
    _call(_libc.unshare(kinds), "unshare", "namespaces")
    for name, text in {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}.items():
        try:
            _write(f"/proc/self/{name}", text)
        except OSError as error:
            raise CallError(error.errno or 0, "map", name) from None
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    _enter_root(plan)
    return os.open(plan["scratch"], os.O_RDONLY | os.O_DIRECTORY)


def _enter_root(plan: dict[str, Any]) -> None:
    """Leaves the host's files for a root that holds what the plan names, read-only, and nothing else."""
    # The temporary folder is there, belongs to this user, and holds nothing.
    root = plan["scratch"]
    _mount_empty(root, f"size={ROOT_BYTES},mode=755")
    for kind, path, source in plan["root"]:
        target = root + path
        if kind == "link":
            _make_mount_point(root, os.path.dirname(path))  # noqa: PTH120
            os.symlink(source, target)  # noqa: PTH211
        elif kind == "bind":
            _make_mount_point(root, path, is_folder=os.path.isdir(source))  # noqa: PTH112
            _mount(source, target, "", MS_BIND | MS_REC)
        elif kind == "cover" and os.path.isfile(target):  # noqa: PTH113
            _mount("/dev/null", target, "", MS_BIND)
        elif kind != "cover" or os.path.isdir(target):  # noqa: PTH112
            _make_mount_point(root, path)
            if kind != "empty":
                _mount_empty(target, f"size={ROOT_BYTES},mode=755")
    for path in ("/proc", "/dev", plan["scratch"]):
        _make_mount_point(root, path)
    _mount("/proc", f"{root}/proc", "", MS_BIND | MS_REC)
    _set_attributes(root, CLOSED, 0, AT_RECURSIVE)
    _replace_devices(plan["devices"], plan["shared_bytes"], root)
    _mount_empty(root + plan["scratch"], f"size={plan['scratch_bytes']},nr_inodes={SCRATCH_FILES},mode=700")
    os.chdir(root)
    _call(_libc.pivot_root(b".", b"."), "pivot_root", root)
    _call(_libc.umount2(b".", MNT_DETACH), "umount2", "/")
    os.chdir("/")


def _make_mount_point(root: str, path: str, *, is_folder: bool = True) -> None:
    """A folder or file in the new root. One behind a link of an image could lie outside of it."""
    place, parts = root, path.strip("/").split("/")
    for index, name in enumerate(filter(None, parts), 1):
        place = f"{place}/{name}"
        if os.path.islink(place):  # noqa: PTH114
            raise OSError(f"the image has a link at {place}, where a folder of the host must be")
        if os.path.lexists(place):
            continue
        if is_folder or index < len(parts):
            os.mkdir(place)  # noqa: PTH102
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY))


def _replace_devices(devices: Iterable[str], shared_bytes: int, root: str) -> None:
    """An own /dev with the nodes in `devices`: for a root, a disk of the host is just another file.

    A read-only mount protects no device.
    """
    _mount_empty(f"{root}/dev", "size=256k,mode=755", MS_NOEXEC)
    for name in devices:
        target, source = f"{root}/dev/{name}", f"/dev/{name}"
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
        if os.path.isdir(source):  # noqa: PTH112
            os.makedirs(target)  # noqa: PTH103
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        _mount(source, target, "", MS_BIND | MS_REC)
        _set_attributes(target, 0, MOUNT_ATTR_NODEV, AT_RECURSIVE)
    for name, target in {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        os.symlink(f"/proc/self/{target}", f"{root}/dev/{name}")  # noqa: PTH211
    os.mkdir(f"{root}/dev/shm")  # noqa: PTH102, S108
    _set_attributes(f"{root}/dev", MOUNT_ATTR_RDONLY, 0, 0)
    _mount_empty(f"{root}/dev/shm", f"size={shared_bytes},nr_inodes={SCRATCH_FILES},mode=1777")  # noqa: S108


def _enter_process_namespace(plan: dict[str, Any], scratch: int) -> None:
    """Returns in the second process of the new namespace; the others end as that one does."""
    first = os.fork()
    channel = _socket.socket(fileno=plan["channel"])
    if first:
        _send_descriptors(channel, struct.pack("ii", scratch, os.pidfd_open(first)))
    channel.close()
    os.close(scratch)
    if first:
        _close_to_others()
        _drop_capabilities(())
    _become_waiter(first)
    # The first process must see its own /proc, must not outlive its parent, and collects what loses its parent.
    _call(_libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "prctl", "parent")
    if plan["isolation"] == "full":
        _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        _protect_system_files("/proc")
    # Kernel code could look into a process that has no more capabilities than itself, unless that may not be dumped.
    _close_to_others()
    _give_up(plan, ())
    _become_waiter(os.fork())
    _call(_libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl", "dumpable")
    _call(_libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "prctl", "parent")


def _close_to_others() -> None:
    """Makes the memory, files and folders of this process unreadable for every process of its user."""
    _call(_libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl", "dumpable")


def _give_up(plan: dict[str, Any], capabilities: Sequence[int]) -> None:
    """Lowers the limits, drops all other capabilities and installs the filter."""
    for name, value in plan["limits"].items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))
    _drop_capabilities(capabilities)
    if plan["filter"]:
        program = bytes.fromhex(plan["filter"])
        instructions = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))
        _call(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0), "prctl", "filter")


def _protect_system_files(proc: str) -> None:
    """Makes what is not about a process read-only: user 0 could set the host's sysctls there.

    The folders of the processes stay writable, because CUDA names its threads in them and does not start otherwise.
    """
    for name in os.listdir(proc):  # noqa: PTH208
        path = f"{proc}/{name}"
        if name.isdigit() or os.path.islink(path):  # noqa: PTH114
            continue
        if os.path.isdir(path) or os.lstat(path).st_mode & 0o222:  # noqa: PTH112
            _mount(path, path, "", MS_BIND | MS_REC)
            _set_attributes(path, MOUNT_ATTR_RDONLY, 0, AT_RECURSIVE)


def _drop_capabilities(kept: Sequence[int]) -> None:
    """User 0 of a new user namespace may undo all of the above until its capabilities there are gone."""
    if not kept:
        _call(_libc.prctl(PR_SET_SECUREBITS, SECURE_NO_ROOT, 0, 0, 0), "prctl", "securebits")
    for capability in range(CAPABILITIES):
        # Fails for the numbers beyond the last capability of this kernel, and for a user who has none.
        if capability not in kept:
            _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    # What this process has now outlives a smaller bounding set until it executes a program, which a fork never does.
    header, sets = struct.pack("Ii", CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    _call(_libc.capget(header, sets), "capget", "")
    mask = sum(1 << capability for capability in kept)
    effective, permitted, inheritable, *high = struct.unpack("6I", sets.raw)
    low = (effective & mask, permitted & mask, inheritable & mask)
    _call(_libc.capset(header, struct.pack("6I", *low, *(0 for _ in high))), "capset", "")
    _call(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl", "new privileges")


def _send_descriptors(channel: _socket.socket, descriptors: bytes) -> None:
    """Waits while other processes of this user have more descriptors in flight than the kernel allows."""
    for left in range(SEND_TRIES, 0, -1):
        try:
            channel.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
        except OSError as error:
            if error.errno != ETOOMANYREFS or left == 1:
                raise
            time.sleep(SEND_PAUSE_SECONDS)
        else:
            return


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
    if number not in (SIGKILL, SIGSTOP):
        _libc.signal(number, None)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _close_descriptors() -> None:
    """Channels end when the child closes them, so whoever waits for it must not hold them open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.closerange(3, 4096)


def _mount_empty(folder: str, options: str, flags: int = 0) -> None:
    _mount("none", folder, "tmpfs", MS_NOSUID | MS_NODEV | flags, options)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (os.fsencode(source), os.fsencode(target), kind.encode() or None)
    _call(_libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None), "mount", f"{kind or source} {target}")


def _set_attributes(folder: str, added: int, removed: int, flags: int) -> None:
    attributes = struct.pack("QQQQ", added, removed, 0, 0)
    words = (AT_FDCWD, os.fsencode(folder), ctypes.c_uint(flags), attributes, ctypes.c_size_t(32))
    _call(_libc.syscall(SYS_MOUNT_SETATTR, *words), "mount_setattr", folder)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(text)


def _call(result: int, name: str, details: str) -> None:
    if result != 0:
        raise CallError(ctypes.get_errno(), name, details)


if __name__ == "__main__":
    main()
