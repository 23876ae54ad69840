"""Attacks that a child tries on its own host: `attacks.py TARGETS`.

`warpwatch doctor` runs this script in a child of each isolation level; see self_attack.py. It needs the standard
library alone. TARGETS are those of `self_attack.Targets` in JSON. Prints a JSON object that says of each attack whether
it reached what it aimed at.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMESPACES = ("full", "user")
NETWORK = (*NAMESPACES, "network")
EVERY = (*NETWORK, "none")
READY = "holding"
"""The line that `hold` prints once it holds as many descriptors as the host allows."""
_MESSAGE_FILES = 250
"""Descriptors in one message; the kernel allows 253."""
_PAIRS = 200
_CLONE_NEWUSER = 0x10000000
_PTRACE_ATTACH = 16
_ADD_KEY = {"x86_64": 248, "aarch64": 217}
_BPF = {"x86_64": 321, "aarch64": 280}
_libc = ctypes.CDLL(None, use_errno=True)
Targets = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack, named in words. `reaches` returns whether the attack worked, and raises OSError for a refusal.

    stopped_at: the levels that promise to stop the attack.
    """

    name: str
    reaches: Callable[[Targets], bool]
    stopped_at: tuple[str, ...]


def _connects(family: int, address: Any) -> bool:
    with socket.socket(family) as attacker:
        attacker.settimeout(2)
        attacker.connect(address)
    return True


def _opens_fifo(targets: Targets) -> bool:
    os.close(os.open(targets["fifo"], os.O_RDWR | os.O_NONBLOCK))
    return True


def _reads(path: str) -> bool:
    return bool(Path(path).read_bytes())


def _writes(path: str) -> bool:
    with Path(path).open("a") as file:
        return file.write("#") == 1


def _opens_disk(_targets: Targets) -> bool:
    """As root a disk is a file that can be written, whatever the file system says."""
    return any(path.is_block_device() or path.name in ("kmsg", "kvm", "mem") for path in Path("/dev").iterdir())


def _signals(targets: Targets) -> bool:
    os.kill(targets["process"], 0)
    return True


def _looks_into_first(_targets: Targets) -> bool:
    return bool(list(Path("/proc/1/root").iterdir()))


def _configures(_targets: Targets) -> bool:
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
    return True


def _fills_disk(_targets: Targets) -> bool:
    """More than the temporary folder of this child may hold."""
    with Path(os.environ["TMPDIR"], "flood").open("wb", buffering=0) as file:
        return sum(file.write(bytes(2**20)) for _ in range(16)) == 2**24


def _answers(result: int) -> bool:
    return result >= 0


def _holds_files(targets: Targets) -> bool:
    return bool(targets["is_starved"])


ATTACKS = (
    Attack("open a TCP connection", lambda t: _connects(socket.AF_INET, ("127.0.0.1", t["port"])), NETWORK),
    Attack("reach an abstract UNIX socket", lambda t: _connects(socket.AF_UNIX, "\0" + t["abstract"]), NETWORK),
    Attack("reach a UNIX socket", lambda t: _connects(socket.AF_UNIX, t["socket"]), NAMESPACES),
    Attack(
        "reach a UNIX socket bound by a relative path",
        lambda t: _connects(socket.AF_UNIX, t["relative_socket"]),
        NAMESPACES,
    ),
    Attack("open a FIFO deep in a folder", _opens_fifo, NAMESPACES),
    Attack("read a file of another commit", lambda t: _reads(t["worktree"]), NAMESPACES),
    Attack("read a file of this user", lambda t: _reads(t["note"]), NAMESPACES),
    Attack("overwrite a file of this user", lambda t: _writes(t["note"]), NAMESPACES),
    Attack("find disks and other devices", _opens_disk, NAMESPACES),
    Attack("configure the kernel", _configures, NAMESPACES),
    Attack("fill the disk", _fills_disk, NAMESPACES),
    Attack("signal a process of this user", _signals, NAMESPACES),
    Attack("read the environment of a worker", lambda t: _reads(f"/proc/{t['worker']}/environ"), EVERY),
    Attack("look into the first process", _looks_into_first, NAMESPACES),
    Attack("trace a process", lambda t: _answers(_libc.ptrace(_PTRACE_ATTACH, t["process"], 0, 0)), EVERY),
    Attack("make a namespace", lambda _: _answers(_libc.unshare(_CLONE_NEWUSER)), EVERY),
    Attack("mount a file system", lambda _: _answers(_libc.mount(b"none", b"/proc", b"tmpfs", 0, None)), EVERY),
    Attack("load a BPF program", lambda _: _answers(_call(_BPF, 0, None, 0)), EVERY),
    Attack("use up keys", lambda _: _answers(_call(_ADD_KEY, b"user", b"doctor", b"x", 1, -2)), EVERY),
    Attack("use up inotify instances", lambda _: _answers(_libc.inotify_init1(0)), EVERY),
    Attack("use up descriptors, so that the next child is not shut in", _holds_files, EVERY),
)


def _call(numbers: dict[str, int], *arguments: Any) -> int:
    return int(_libc.syscall(numbers.get(platform.machine(), -1), *arguments))


def hold() -> None:
    """Holds as many descriptors in flight as the host allows, until it is killed."""
    pairs = []
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDONLY)
        files = array.array("i", [nothing] * _MESSAGE_FILES)
        for _ in range(_PAIRS):
            pairs.append(socket.socketpair())
            for _ in range(_PAIRS):
                pairs[-1][0].setblocking(False)
                try:
                    pairs[-1][0].sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
                except BlockingIOError:
                    break
    print(READY, flush=True)
    time.sleep(60)


def main() -> None:
    targets: Targets = json.loads(sys.argv[1])
    if targets.get("hold"):
        hold()
        return
    reached = {}
    for attack in ATTACKS:
        try:
            reached[attack.name] = attack.reaches(targets)
        except OSError:
            reached[attack.name] = False
    print(json.dumps(reached))


if __name__ == "__main__":
    main()
