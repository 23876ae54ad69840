"""Forks children that have torch imported: `template.py CONTROL IMPORTING PARENT THREADS PADDING [compilers] [bare]`.

A template imports torch and the harness as a child does, and torch's compilers where it is told to. It runs no code of
a commit, opens no device, and forks a child for each request on the socket CONTROL. Descriptors of a request pass
through it, and their content is read after the fork, so its memory, which every later child gets a copy of, holds
nothing of an earlier one. A fork gives up what `confine` takes from any child, gets arguments, environment and
descriptors of its own, and runs the same script.

A fork keeps what this process was started with: the addresses of what is imported, and the seed of Python's hashes.
`templates.py` starts another template after some children.

A template that could not import, has several threads or has opened a device must not fork. It starts anew without the
compilers, and then as a bare one, whose children import what they need themselves.

IMPORTING is a descriptor that is closed when children need not wait for imports any more. The parent's socket of each
child gets the child's number and, at its end, its exit status, negative for a signal. Where the parent closes its side,
the child is killed. A template ends with its last child once CONTROL was closed, and at once when the process PARENT
ends; its children die with it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import os
import random
import runpy
import select
import signal
import socket
import struct
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).absolute().parent
BARE, COMPILERS = "bare", "compilers"
PR_SET_DUMPABLE = 4
DESCRIPTORS = 6
"""At most, of one request: status, standard input, output, replies, plan and channel."""
_ARGUMENTS, _VARIABLES = 45, 47
"""Places of the addresses of a process's arguments and environment in /proc/PID/stat, counted from its state."""
_THREADS_END_SECONDS = 1.0
_BLOCKS, _BLOCK_UNIT, _LARGEST_BLOCK = 64, 16, 4096
"""Number, unit in bytes and largest size in units of the blocks that move a fork's memory."""
_libc = ctypes.CDLL(None, use_errno=True)


class TemplateServer:
    """The children of this template, each by the descriptors of its process and of its socket."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control = control
        self._parent = os.pidfd_open(parent)
        self._events = select.poll()
        self._children: dict[int, tuple[int, int]] = {}
        """(process id, socket) by the descriptor of the process, while it runs."""
        self._sockets: dict[int, tuple[int, int | None]] = {}
        """(process id, descriptor of the process while it runs) by the socket."""
        for descriptor in (control.fileno(), self._parent):
            self._events.register(descriptor, select.POLLIN)

    def serve(self) -> list[int]:
        """Returns in each child, with the descriptors of its request."""
        is_open = True
        while is_open or self._sockets:
            for descriptor, _ in self._events.poll():
                if descriptor == self._parent:
                    os._exit(0)
                if descriptor == self._control.fileno():
                    received = socket.recv_fds(self._control, 1, DESCRIPTORS)[1]
                    if not received:
                        self._events.unregister(self._control)
                        is_open = False
                    elif self._fork(received) == 0:
                        self._control.detach()
                        return received
                elif descriptor in self._children:
                    self._report_end(descriptor)
                elif descriptor in self._sockets:
                    self._kill(descriptor)
        os._exit(0)

    def _fork(self, received: list[int]) -> int | None:
        """As os.fork; None where there is no memory or no number for another process."""
        status = received[0]
        try:
            pid = os.fork()
        except OSError:
            pid = None
        if pid == 0:
            return pid
        for descriptor in received[1 if pid else 0 :]:
            os.close(descriptor)
        if pid is not None:
            self._send(status, pid)
            process = os.pidfd_open(pid)
            self._children[process] = (pid, status)
            self._sockets[status] = (pid, process)
            self._events.register(process, select.POLLIN)
            self._events.register(status, 0)
        return pid

    def _report_end(self, process: int) -> None:
        """The child stays a zombie, so that nobody else gets its number while the parent may still kill by it."""
        pid, status = self._children.pop(process)
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
        self._send(status, end.si_status if end.si_code == os.CLD_EXITED else -end.si_status)
        self._events.unregister(process)
        os.close(process)
        # Another child may get the number of this descriptor before the parent closes its side.
        self._sockets[status] = (pid, None)

    def _kill(self, status: int) -> None:
        pid, process = self._sockets.pop(status)
        if process is not None:
            del self._children[process]
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
            self._events.unregister(process)
            os.close(process)
        os.waitpid(pid, 0)
        self._events.unregister(status)
        os.close(status)

    def _send(self, status: int, number: int) -> None:
        # A parent that has closed its side is not told; the next event kills the child.
        with contextlib.suppress(BrokenPipeError):
            os.write(status, struct.pack("i", number))


def main() -> None:
    control, importing, parent, threads = map(int, sys.argv[1:5])
    if BARE not in sys.argv:
        with_compilers = COMPILERS in sys.argv
        obstacle = import_harness(threads, compilers=with_compilers) or find_obstacle()
        if obstacle and with_compilers:
            sys.argv.remove(COMPILERS)
            os.execv(sys.executable, [sys.executable, "-P", *sys.argv])  # noqa: S606
        if obstacle:
            print(f"Warpwatch starts each child anew, which takes longer: {obstacle}", file=sys.stderr, flush=True)
            os.execv(sys.executable, [sys.executable, "-P", *sys.argv, BARE])  # noqa: S606
    confine = load_module("confine", HERE / "confine.py")
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.close(importing)
    descriptors = TemplateServer(socket.socket(fileno=control), parent).serve()
    words = become_child(confine, descriptors)
    runpy.run_path(words[2], run_name="__main__")


def import_harness(threads: int, *, compilers: bool) -> str:
    """Imports what a child imports at its start or at its first gradient, and torch's compilers, which take longer than
    torch itself, if it may use them; returns the error that prevents it, "" for none."""
    bootstrap = load_module("bootstrap", HERE / "harness" / "child" / "bootstrap.py")
    cpus = os.sched_getaffinity(0)
    # Nothing needs NumPy here, and its absence is no message for whoever runs a command.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")
    try:
        bootstrap.load_harness(argparse.Namespace(threads=threads))
        with contextlib.suppress(ImportError):
            # Most operators have gradients, and every fresh child would import it anew.
            bootstrap.load_modules(bootstrap.GRADIENTS)
        if compilers:
            bootstrap.load_modules(bootstrap.COMPILERS)
            # The import makes the folder of a cache, in whose place each child has one of its own.
            cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            for folder in (cache, cache.parent):
                with contextlib.suppress(OSError):
                    folder.rmdir()
    except Exception as error:  # noqa: BLE001 - a child that imports it itself reports it in its own words.
        return f"{type(error).__name__}: {error}"
    # A child counts and chooses its CPUs itself.
    os.sched_setaffinity(0, cpus)
    return ""


def find_obstacle() -> str:
    """Why this process must not fork children, "" for no reason.

    After a fork there is one thread, and locks and pools of the others are as they left them. A driver that was
    initialised does not work in a fork, and would be shared by the children of several commits.
    """
    # OpenBLAS has threads as soon as it is loaded, ends them before a fork, and starts others when it needs them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + _THREADS_END_SECONDS
    while (threads := len(list(Path("/proc/self/task").iterdir()))) > 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    if threads > 1:
        return f"after the import of torch, {threads} threads run"
    for path in Path("/proc/self/fd").iterdir():
        # The descriptor of this listing is closed by then.
        with contextlib.suppress(OSError):
            if int(path.name) > 2 and path.readlink().is_relative_to("/dev"):
                return f"after the import of torch, {path.readlink()} is open"
    return ""


def become_child(confine: ModuleType, descriptors: list[int]) -> list[str]:
    """Makes a fork what a child is that was started as a program; returns its command line."""
    _, requests, output, replies, *of_jail = descriptors
    os.setsid()
    for source, target in ((requests, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    close_others({replies, *of_jail})
    # The owner of the files in /proc/self of a process that may not be dumped is root.
    _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    plan: dict[str, Any] = confine.read_plan(of_jail[0])
    words, variables = plan["words"], plan["variables"] | {plan["reply_variable"]: str(replies)}
    plan["channel"] = of_jail[1] if len(of_jail) > 1 else -1
    os.environ.clear()
    os.environ.update(variables)
    # Only now does nothing refer to the environment that this process was started with.
    show_in_proc(words, variables)
    sys.argv[:], sys.orig_argv[:] = words[2:], words
    confine.confine(plan)
    draw_seeds()
    scatter_memory()
    return list(words)


def draw_seeds() -> None:
    """New seeds for the generators that a process seeds at random when it starts. Python does so after every fork."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()


def scatter_memory() -> None:
    """Moves what this fork will allocate to places of its own, as those of a program are: the same loop may take 12 %
    longer by where its buffers begin within a cache line. The blocks are never freed."""
    source = random.SystemRandom()
    for _ in range(_BLOCKS):
        _libc.malloc(ctypes.c_size_t(_BLOCK_UNIT * source.randint(1, _LARGEST_BLOCK)))


def close_others(kept: set[int]) -> None:
    """Closes all descriptors but these and the standard ones."""
    lowest = 3
    for descriptor in sorted(kept):
        os.closerange(lowest, descriptor)
        lowest = descriptor + 1
    os.closerange(lowest, os.sysconf("SC_OPEN_MAX"))


def show_in_proc(words: list[str], variables: dict[str, str]) -> None:
    """Overwrites the command line and the environment in /proc/PID with those of the child.

    Whoever looks for processes of a child finds them by these. Both have the room of the template's padding.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # The temporary folder comes first, because what has no room is cut off.
    ordered = sorted(variables.items(), key=lambda item: item[0] != "TMPDIR")
    for place, entries in ((_ARGUMENTS, words), (_VARIABLES, [f"{name}={value}" for name, value in ordered])):
        begin, end = int(fields[place]), int(fields[place + 1])
        text = "\0".join(entries).encode(errors="surrogateescape")[: end - begin - 1]
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, text, len(text))


def load_module(name: str, path: Path) -> ModuleType:
    """The module in a file, which is not on the path of modules."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
