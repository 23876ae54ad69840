"""The filter of system calls for children, as a program for the kernel.

It is our own because the one Python binding, pyseccomp, needs a libseccomp that neither the wheel nor slim images
bring, and because the program is a list of comparisons. What it refuses are calls that no compiler, profiler or kernel
of a healthy commit makes and that have led out of sandboxes before: namespaces, mounts, keys, BPF, tracing of other
processes, io_uring, sockets of virtual machines. Others use up what all processes of a user share: inotify has 128
instances for them.

perf_event_open stays allowed, because instruction counts need it; the kernel's own setting decides how far it reaches.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

LOAD, JUMP_EQUAL, JUMP_ABOVE, JUMP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW = 0x7FFF0000
ERRNO = 0x00050000
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets in the kernel's `struct seccomp_data`; an argument has eight bytes, the low half first."""
X32 = 0x40000000
"""Bit of the numbers of x86-64's second set of system calls, which no list would cover."""
NAMESPACES = 0x7E020000
"""Every CLONE_NEW… flag that clone takes."""
SOCKETS = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK. AF_VSOCK would reach the hypervisor past every network namespace."""
TERMINALS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into a terminal."""
LEASE = 1024
"""F_SETLEASE: whoever opens a file with a lease waits up to 45 s for its holder, which need not be able to write it."""
TRACING = ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp")

REFUSED: dict[str, tuple[int, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "quotactl": (179, 60),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
}
"""System calls that fail with EPERM, with their numbers on x86-64 and on aarch64."""


@dataclass(frozen=True, slots=True)
class _Machine:
    """One instruction set: its place in REFUSED, its constant, and the calls whose arguments decide."""

    column: int
    audit: int
    clone: int
    clone3: int
    socket: int
    ioctl: int
    fcntl: int


_MACHINES = {
    "x86_64": _Machine(0, 0xC000003E, clone=56, clone3=435, socket=41, ioctl=16, fcntl=72),
    "aarch64": _Machine(1, 0xC00000B7, clone=220, clone3=435, socket=198, ioctl=29, fcntl=25),
}


def build_filter(traceable: bool = False, machine: str | None = None) -> bytes:
    """The program for `machine`, by default this one; empty for one that is unknown.

    traceable: whether processes of the child may trace each other, which compute-sanitizer and debuggers do.
    """
    target = _MACHINES.get(machine or platform.machine())
    if target is None:
        return b""
    refused, absent = RETURN, ERRNO | errno.ENOSYS
    program = [
        _load(ARCHITECTURE),
        _step(JUMP_EQUAL, target.audit, 1, 0),
        _step(refused, ERRNO | errno.EPERM),
        _load(NUMBER),
        *([_step(JUMP_ABOVE, X32, 0, 1), _step(refused, absent)] if target.column == 0 else []),
        # The C library falls back to clone, whose flags can be looked at.
        *_refuse(target.clone3, errno.ENOSYS),
    ]
    for name, numbers in REFUSED.items():
        number = numbers[target.column]
        if number is not None and not (traceable and name in TRACING):
            program += _refuse(number, errno.EPERM)
    program += _when(target.clone, 0, [_step(JUMP_BITS, NAMESPACES, 0, 1), _step(refused, ERRNO | errno.EPERM)])
    terminals = [step for request in TERMINALS for step in _refuse(request, errno.EPERM)]
    program += _when(target.ioctl, 1, terminals)
    program += _when(target.fcntl, 1, _refuse(LEASE, errno.EPERM))
    families = [_step(JUMP_EQUAL, family, len(SOCKETS) - index, 0) for index, family in enumerate(SOCKETS)]
    program += _when(target.socket, 0, [*families, _step(refused, ERRNO | errno.EAFNOSUPPORT)])
    return b"".join([*program, _step(RETURN, ALLOW)])


def _when(number: int, argument: int, steps: list[bytes]) -> list[bytes]:
    """Runs `steps` on the low half of an argument of one system call, which is allowed unless they refuse it."""
    body = [_load(ARGUMENTS + 8 * argument), *steps, _step(RETURN, ALLOW)]
    return [_step(JUMP_EQUAL, number, 0, len(body)), *body]


def _refuse(value: int, code: int) -> list[bytes]:
    return [_step(JUMP_EQUAL, value, 0, 1), _step(RETURN, ERRNO | code)]


def _load(offset: int) -> bytes:
    return _step(LOAD, offset)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
