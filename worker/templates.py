"""Starts children as forks of a template, which has imported torch for them; see template.py.

One template at a time serves this process. Its children share the addresses of what it imported and the seed of
Python's hashes, so after some children another takes its place, which beside a GPU is ready by then, and it ends with
the last of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from warpwatch.contract.words import Reason
from warpwatch.worker.reporter import CannotRunError
from warpwatch.worker.sandbox import BYTECODE_VARIABLE, Jail, environment

CHILDREN, CHILDREN_BESIDE_GPU = 16, 48
"""Children of one template. What a GPU takes does not depend on where the host's code lies, and a comparison of a few
pairs starts a dozen of them within the time that the next template needs to import torch's compilers."""
SCRIPT = Path(__file__).with_name("template.py")
REPLY_VARIABLE = "WARPWATCH_REPLY_FD"
"""As in harness/child/bootstrap.py."""
_NOWHERE = Path("/nonexistent")
"""Home and temporary folder of a template, which uses neither."""
_PADDING_VARIABLE = "PADDING"
_PADDING = " " * 16 * 2**10
COMPILERS = "compilers"
"""As in template.py."""
_BUILD_VARIABLES = ("CXXFLAGS", "NVCCFLAGS")
"""Variables that only builds of native code read, and no process reads at its start."""
_NUMBER = struct.Struct("i")
_END_SECONDS = 1.0
_REPORT_SECONDS = 10.0
_ARGUMENTS = 45
"""As in template.py."""


@cache
def exist() -> bool:
    """Whether this system has what template.py needs; sandboxes that stand in for a kernel lack some of it."""
    if not sys.platform.startswith("linux"):
        return False
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""]) as process:
        try:
            descriptor = os.pidfd_open(process.pid)
            fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        events = select.poll()
        events.register(descriptor, select.POLLIN)
        reported = events.poll(_REPORT_SECONDS * 1000)
        os.close(descriptor)
        return bool(reported) and fields[_ARGUMENTS] != "0"


def can_set(variables: Sequence[tuple[str, str]]) -> bool:
    """Whether these variables may be set in a fork. Its template was started without them."""
    return all(name in _BUILD_VARIABLES for name, _ in variables)


@dataclass(frozen=True, slots=True)
class TemplateKey:
    """The parameters that a template was started with. owner: the process that started the template. compilers: whether
    the template has imported torch's compilers. children: how many children the template may have."""

    owner: int
    threads: int
    compilers: bool
    variables: tuple[tuple[str, str], ...]
    children: int


@dataclass(slots=True)
class _Compilers:
    """Whether a child has used torch's compilers. To import them takes longer than torch itself, which is lost on
    children that use none."""

    used: bool = False


@dataclass(frozen=True, slots=True)
class TemplateRequest:
    """Start parameters of a child: its command line, its environment, the folder it starts in, the folders that the
    child sees although a folder above them is hidden, the CPU threads for which libraries are loaded, and its
    device."""

    words: Sequence[str]
    variables: dict[str, str]
    folder: Path
    visible: Sequence[Path]
    threads: int
    device: str = "cpu"

    def key(self, temp: Path | None, *, compilers: bool) -> TemplateKey:
        """The key of the template that can fork this child. A fork of this process has no template.

        temp: the temporary folder that the child will see, where all children see the same folder: compilers remember
        where their caches lie when they are imported. Without compilers, one template serves children of every folder.
        """
        compilers = compilers and temp is not None
        own = environment(temp if temp is not None and compilers else _NOWHERE)
        if BYTECODE_VARIABLE in self.variables:
            own[BYTECODE_VARIABLE] = self.variables[BYTECODE_VARIABLE]
        children = CHILDREN if self.device == "cpu" else CHILDREN_BESIDE_GPU
        return TemplateKey(os.getpid(), self.threads, compilers, tuple(own.items()), children)


class Template:
    """A running template."""

    def __init__(self, key: TemplateKey) -> None:
        self.key = key
        self.forked = 0
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._importing, importing = socket.socketpair()
        passed = [control.fileno(), importing.fileno()]
        words = [*passed, os.getpid(), key.threads, _PADDING, *([COMPILERS] if key.compilers else [])]
        with control, importing:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(SCRIPT), *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=passed,
                cwd="/",
                env=dict(key.variables) | {_PADDING_VARIABLE: _PADDING},
                start_new_session=True,
            )

    def fits(self, key: TemplateKey) -> bool:
        return self.key == key and self.forked < key.children and self.process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether it has imported everything, or is gone."""
        return bool(select.select([self._importing], [], [], 0)[0])

    def fork(self, descriptors: Sequence[int]) -> socket.socket:
        """The socket on which the template reports a new child; OSError where the template is gone."""
        status, reports = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with reports:
            socket.send_fds(self._control, [b"."], [reports.fileno(), *descriptors])
        self.forked += 1
        return status

    def close(self) -> None:
        """It ends with the last of its children."""
        self._control.close()
        self._importing.close()


class TemplateChild:
    """A child of a template: what `Child` uses of subprocess.Popen."""

    def __init__(self, template: Template, status: socket.socket, requests: int) -> None:
        self._template = template.process
        self._status = status
        self._pid: int | None = None
        self._returncode: int | None = None
        self.stdin = open(requests, "wb", buffering=0)  # noqa: SIM115 - closed by `release`

    @property
    def pid(self) -> int | None:
        """None before the template has forked it."""
        if self._pid is None:
            self._receive(0)
        return self._pid

    def poll(self) -> int | None:
        while self._returncode is None and self._receive(0):
            pass
        return self._returncode

    def wait(self, timeout: float | None = None) -> int:
        """As Popen.wait: the exit status, negative for a signal; subprocess.TimeoutExpired when it takes longer."""
        while self._returncode is None:
            if not self._receive(timeout):
                raise subprocess.TimeoutExpired("a child of a template", timeout or 0)
        return self._returncode

    def release(self) -> None:
        """Lets the template forget the child, which kills it where it still runs, or was not forked yet."""
        if self._returncode is None:
            self._returncode = -signal.SIGKILL
        self._status.close()
        self.stdin.close()

    def _receive(self, seconds: float | None) -> bool:
        """Takes the next report, if one comes within `seconds`: the first is the process's number, the second its
        exit status."""
        if self._returncode is not None:
            return True
        self._status.settimeout(seconds)
        try:
            report = self._status.recv(_NUMBER.size)
        except (BlockingIOError, TimeoutError):
            return False
        except ConnectionResetError:
            report = b""
        if not report:
            self._returncode = self._end_of_template()
        elif self._pid is None:
            self._pid = _NUMBER.unpack(report)[0]
        else:
            self._returncode = _NUMBER.unpack(report)[0]
        return True

    def _end_of_template(self) -> int:
        """How the template ended, and its children with it; as if by lack of memory where it lives and could not
        fork."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._template.wait(_END_SECONDS) or -signal.SIGKILL
        return -signal.SIGKILL


class _Templates:
    """The template of this process, and those that end with the last of their children."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: Template | None = None
        self._next: Template | None = None
        self._retired: list[Template] = []

    def fork(self, request: TemplateRequest, jail: Jail, descriptors: Sequence[int]) -> tuple[Template, socket.socket]:
        key = request.key(jail.shared_temp, compilers=_compilers.used)
        with self._lock:
            # Most children need no compilers, so they do not wait until the next template has imported them.
            plain = request.key(jail.shared_temp, compilers=False)
            if not (self._fits(key) or (self._fits(plain) and self._is_awaited(key))):
                self._replace(key)
            if request.device != "cpu" and self._next is None:
                # Beside a GPU cores are idle, and the first child has much to do before others need compilers.
                _compilers.used = True
                self._next = Template(request.key(jail.shared_temp, compilers=True))
            template = self._current
            assert template is not None
            details = {"variables": request.variables, "reply_variable": REPLY_VARIABLE}
            jail.write_plan(request.words, request.folder, request.visible, template.process.pid, **details)
            return template, template.fork([*descriptors, *jail.passed])

    def close(self) -> None:
        """Ends the templates, with those children that nobody has closed."""
        with self._lock:
            self._retire(self._current, self._next)
            self._current = self._next = None
            for template in self._retired:
                try:
                    template.process.wait(_END_SECONDS)
                except subprocess.TimeoutExpired:
                    template.process.kill()
                    template.process.wait()

    def _fits(self, key: TemplateKey) -> bool:
        return self._current is not None and self._current.fits(key)

    def _is_awaited(self, key: TemplateKey) -> bool:
        """Whether the next template fits and is still importing."""
        return self._next is not None and self._next.fits(key) and not self._next.is_ready

    def _replace(self, key: TemplateKey) -> None:
        """Puts a template that fits in the place of the current one."""
        fits = self._next is not None and self._next.fits(key)
        self._retire(self._current, None if fits else self._next)
        self._current, self._next = self._next if fits else Template(key), None

    def _retire(self, *templates: Template | None) -> None:
        self._retired = [template for template in self._retired if template.process.poll() is None]
        for template in filter(None, templates):
            template.close()
            self._retired.append(template)


_compilers = _Compilers()
_templates = _Templates()
close = _templates.close
atexit.register(close)


def learn(*, compiles: bool) -> None:
    """Once a child has used torch's compilers, templates import them."""
    _compilers.used |= compiles


def forget_compilers() -> None:
    """Templates import no compilers any more, until a child uses them again."""
    _compilers.used = False


def fork(request: TemplateRequest, jail: Jail, replies: int, output: int) -> TemplateChild:
    """Starts a child that reads requests from its standard input and has these descriptors for replies and output."""
    theirs, requests = os.pipe()
    try:
        template, status = _templates.fork(request, jail, [theirs, output, replies])
    except OSError as error:
        os.close(requests)
        raise CannotRunError(f"no child could be started: {error}", retry=True, reason=Reason.HOST_FAULT) from error
    finally:
        os.close(theirs)
    return TemplateChild(template, status, requests)
