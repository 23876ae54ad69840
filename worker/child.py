"""One harness child: start it, ask it, kill it.

The parent never trusts the child to answer: every request has a time limit, is interrupted within a fifth of a second
when the job must stop, and ends in a ChildFailure that carries a status, whose receiver drops the child.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from warpwatch import CONTRACT
from warpwatch.contract.activities import RunTimes
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.messages import PING, TURN, Request
from warpwatch.contract.words import Fault, LaneUse, Reason, Status
from warpwatch.worker import headers, sandbox, templates
from warpwatch.worker.caches import CodeCache
from warpwatch.worker.images import ContainerImage
from warpwatch.worker.line_reader import LineReader, printable
from warpwatch.worker.reporter import CannotRunError, Reporter, Stopped
from warpwatch.worker.sanitizers import Sanitizer, first_finding
from warpwatch.worker.trees import Tree
from warpwatch.worker.turns import LaneTurns

_DEEPEST_REPLY = 32
OBJECT_LIMIT, VALUE_LIMIT = 200_000, 2_000_000
"""Objects with lists, and values, of one message: 64 MiB of `[],[],…` would take 2 GB of the parent's memory."""


def parse_reply(line: bytes) -> dict[str, Any]:
    """One message as the database can hold it, and a terminal may show it; ValueError for anything else."""
    if line.count(b"{") + line.count(b"[") > OBJECT_LIMIT or line.count(b",") > VALUE_LIMIT:
        raise ValueError(f"it has more than {OBJECT_LIMIT} objects or {VALUE_LIMIT} values")
    try:
        message = _storable_reply(json.loads(line, parse_int=_bounded_int))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(message, dict):
        raise ValueError("it is no object")
    return message


def _bounded_int(digits: str) -> int:
    # Python refuses to read thousands of digits, with a ValueError as well.
    number = int(digits)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{digits[:40]} does not fit into 64 bits")
    return number


def _storable_reply(value: Any, depth: int = 0) -> Any:
    """`value` as the database can hold it: text without control and broken characters; ValueError where it is nested
    too deep."""
    if isinstance(value, str):
        return printable(value).encode("utf-8", "replace").decode("utf-8")
    if not isinstance(value, dict | list):
        return value
    if depth > _DEEPEST_REPLY:
        raise ValueError("it is nested too deep")
    if isinstance(value, list):
        return [_storable_reply(item, depth + 1) if isinstance(item, str | dict | list) else item for item in value]
    return {_storable_reply(name): _storable_reply(item, depth + 1) for name, item in value.items()}


T = TypeVar("T")
START_SECONDS = 180.0
"""How long a child may take to import torch on a cold, busy disk."""
REPLY_LIMIT = 64 * 2**20
"""Bytes of one reply; a million samples need less."""
SEND_SECONDS = 60.0
"""How long a child may leave a request unread once its pipe is full; one that waits for a request reads it at once."""
_MESSAGE_LIMIT, _BUILD_LOG_LIMIT = 2**16, 2**20
"""Characters of what a reply says to people. The harness keeps to less; kernel code would fill the database."""
_POLL_SECONDS = 0.1
_FORK_POLL_SECONDS = 0.005
_TAIL_LINES = 30
_LINE_LIMIT = 8192
_EXIT_SECONDS = 5.0
_MEMORY_WORDS = ("bad_alloc", "MemoryError", "out of memory", "can't allocate memory", "Cannot allocate memory")
_SHIM_WORDS = "Exception in aoti_torch"
"""The text that torch prints where a call of a native operator into torch fails.

The operator learns only that the call failed, and with older torch not even that.
"""
_PING_BITS = 53
"""JSON numbers are exact up to 2^53."""


_UNPROFILED = frozenset({"catalogue", "cases", "environment", "check"})
"""Requests for which no child uses torch's profiler."""


class ChildFailure(Exception):  # noqa: N818 - it carries a status, which is a result and not an error
    """A request got no valid reply: the child crashed, hung, ran out of memory or sent something else."""

    def __init__(self, status: Status, message: str, fault: Fault | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.fault = fault


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """Start parameters of a child.

    root: the worktree. operators, native: folders in the worktree. libraries: the folder of the libraries built for the
    worktree. builds: "plain" or "address" for a child that builds libraries (for AddressSanitizer) and runs no code of
    the commit, None for a child that measures. cache: the files that compilers of earlier children made of the same
    content. bytecode: the folder with the byte code of the child's packages, None where the packages have byte code of
    their own. headers: the folder with torch's precompiled headers, None where a child makes its own. measured: the
    folders of the packages that operators measure, empty where the packages lie in the worktree; any of the folders may
    be a link. packages: the names of the packages. visible: further folders that the child sees, which are the worker's
    own and no links. variables: further environment variables of the child.
    """

    root: Path
    device: str
    libraries: Path
    threads: int
    operators: str = "kernels"
    native: str = "csrc"
    interpreter: str | None = None
    bootstrap: Path = sandbox.BOOTSTRAP
    sanitizer: Sanitizer | None = None
    builds: str | None = None
    cache: CodeCache | None = None
    bytecode: Path | None = None
    headers: Path | None = None
    measured: tuple[Path, ...] = ()
    visible: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()
    may_be_forked: bool = True
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def is_forked(self) -> bool:
        """Whether a template forks it. A template runs outside the sandbox, so it is never the interpreter that a
        commit chose; a sanitizer, and variables that libraries read, must be there when a process starts."""
        is_own = find_interpreter(self.interpreter) == sys.executable and templates.can_set(self.variables)
        return self.may_be_forked and is_own and self.builds is None and self.sanitizer is None and templates.exist()

    def command(self, image: ContainerImage | None = None) -> list[str]:
        interpreter = find_interpreter(self.interpreter, image)
        if interpreter is None:
            raise CannotRunError(f"the interpreter {self.interpreter!r} of this commit is not on this machine")
        options = {
            "root": self.root,
            "operators": self.operators,
            "native": self.native,
            "contract": CONTRACT,
            "device": self.device,
            "libraries": self.libraries,
            "threads": self.threads,
        }
        if self.builds == "address":
            options["sanitize"] = self.builds
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        words += [word for folder in self.measured for word in ("--measured", str(folder))]
        words += ["--packages", ",".join(self.packages)] if self.measured else []
        words += ["--build"] if self.builds else []
        return [interpreter, "-P", str(self.bootstrap), *words]


LIVING: set[Child] = set()
"""The children of this process that nobody has closed."""


def find_interpreter(name: str | None, image: ContainerImage | None = None) -> str | None:
    """The path of the Python that warpwatch.toml names, by default the worker's own or the image's python3."""
    if image is not None:
        return image.find_program(name or "python3")
    return shutil.which(name) if name else sys.executable


class Child:
    """A running harness. Must be used by the thread that started it: the kernel may kill it when that thread ends.

    turns: those of its lane, where other children of the job use the device as well. requests: how many were sent.
    """

    def __init__(
        self, spec: ChildSpec, confinement: sandbox.Confinement, reporter: Reporter, turns: LaneTurns | None = None
    ) -> None:
        self._reporter = reporter
        self._turns = turns
        self._sanitizer = spec.sanitizer
        self.times = RunTimes()
        """Seconds of the last request by activity, as the child reports, at most the duration of the request."""
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.requests = 0
        self._has_greeted = self._is_closed = False
        self.has_profiled = False
        """Whether torch's profiler may have served it. CUPTI then has no place for one who records launches."""
        self._doing = ""
        self._cache = spec.cache
        self._headers = spec.headers
        self.root = spec.root
        self._jail = sandbox.Jail(confinement)
        reply_end, child_reply = os.pipe()
        log_end, child_log = os.pipe()
        self._replies = LineReader(reply_end, REPLY_LIMIT)
        self._output = LineReader(log_end, _LINE_LIMIT)
        try:
            if self._turns is not None:
                # To open a GPU disturbs what is timed on it.
                self._turns.use(LaneUse.OPENING, reporter.should_stop)
            self._process = self._start(spec, child_reply, child_log)
        except BaseException:
            self._leave_device()
            self._jail.close()
            raise
        finally:
            self._jail.launched()
            os.close(child_reply)
            os.close(child_log)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        LIVING.add(self)

    def _start(self, spec: ChildSpec, replies: int, output: int) -> subprocess.Popen[bytes] | templates.TemplateChild:
        inside = self._jail.inside
        environment = self._jail.environment() | dict(spec.variables)
        command = spec.command(self._jail.image)
        if spec.sanitizer is not None:
            environment |= spec.sanitizer.variables(inside)
            command = spec.sanitizer.wrap(command, inside)
        if spec.bytecode is not None:
            environment[sandbox.BYTECODE_VARIABLE] = str(spec.bytecode)
        # A child that builds starts elsewhere, so that no file of the commit is where a program looks for its own.
        folder = inside if spec.builds else spec.root
        folders = {spec.root, spec.libraries, spec.bytecode, spec.headers, spec.bootstrap.parent, *spec.visible}
        visible = [path for path in folders if path is not None and path.is_dir()]
        if spec.is_forked and self._jail.image is None:
            request = templates.TemplateRequest(command, environment, folder, visible, spec.threads, spec.device)
            return templates.fork(request, self._jail, replies, output)
        return subprocess.Popen(
            self._jail.command(command, folder, visible),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[replies, *self._jail.passed],
            env=environment | {templates.REPLY_VARIABLE: str(replies)},
            start_new_session=True,
            bufsize=0,
        )

    @property
    def temp(self) -> Tree:
        """The child's temporary folder, as this process reaches it."""
        return Tree(self._jail.folder())

    @property
    def pid(self) -> int | None:
        """None before its template has forked it."""
        return self._process.pid

    @property
    def has_headers(self) -> bool:
        """Whether it uses torch's precompiled headers instead of its own."""
        return self._headers is not None

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def serve(self, reporter: Reporter, turns: LaneTurns | None) -> None:
        """From now on the child, which serves no request, reports there and is one of that lane."""
        self._reporter = reporter
        self._turns = turns

    def wait_ready(self) -> None:
        """Returns once the child has greeted; CannotRunError when it says that it cannot work."""
        try:
            if not self._has_greeted:
                self._expect_greeting()
        finally:
            self._leave_device()

    def _expect_greeting(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.pid is None and self.alive and time.monotonic() < deadline:
            self._expect_no_stop()
            time.sleep(_FORK_POLL_SECONDS)
        if self._cache is not None:
            # No code of the commit runs before the first request.
            with _logged_failure(self._reporter, "earlier compilations cannot be used"):
                self._cache.fill(self.temp, sandbox.JIT)
                # Without it, torch compiles some kernels of its own again in each process, with a warning.
                self.temp.make_folder(sandbox.OTHER)
        if self._headers is not None:
            with _logged_failure(self._reporter, "precompiled headers cannot be used"):
                headers.lay_out(self._headers, self.temp)
        try:
            greeting = self._next_message(deadline, START_SECONDS)
        except ChildFailure as failure:
            message = f"the harness did not start: {failure.message}"
            raise CannotRunError(message, retry=True, reason=Reason.HOST_FAULT) from failure
        if greeting.get("event") != "ready":
            raise CannotRunError(str(greeting.get("message", "the harness did not start"))[:_MESSAGE_LIMIT])
        self._has_greeted = True

    def send(self, verb: str, **fields: Any) -> None:
        """Sends one request. `receive` must take its reply before the next."""
        self.requests += 1
        self.has_profiled |= verb not in _UNPROFILED
        self._read_output()
        self._tail.clear()
        self._doing = ""
        self.times = RunTimes()
        lanes = self._turns.lanes if self._turns is not None else 1
        self._send(Request(self.requests, verb, **fields, lanes=lanes))

    def receive(self, seconds: float, reporter: Reporter) -> dict[str, Any]:
        """The reply to what was sent as plain JSON; ChildFailure when none comes within `seconds` without those in
        which it waited for its turn, Stopped when told to stop."""
        self._reporter = reporter
        try:
            return self._receive(seconds)
        finally:
            self._leave_device()

    def _leave_device(self) -> None:
        if self._turns is not None:
            self._turns.leave()

    def _receive(self, seconds: float) -> dict[str, Any]:
        begin = time.monotonic()
        deadline = begin + seconds
        while True:
            message = self._next_message(deadline, seconds)
            # Events before the reply say how far one case is, which is finer than a job's progress; after a crash it
            # tells where.
            if "event" in message:
                deadline += self._grant_turn(message)
                self._doing = str(message.get("text", self._doing))[:100]
                continue
            if message.get("id") != self.requests:
                raise _forged()
            reply = message.get("reply")
            if not isinstance(reply, dict):
                raise ChildFailure(Status.CRASHED, "the harness sent a reply that is not one")
            _cut(reply, "message", _MESSAGE_LIMIT)
            _cut(reply, "log", _BUILD_LOG_LIMIT)
            with contextlib.suppress(ValueError):
                self.times = from_json(RunTimes, message.get("times")).within(time.monotonic() - begin)
            templates.learn(compiles=message.get("compiles") is True)
            self._read_output()
            if reply.get("status") == Status.CRASHED and self._shim_lacked_memory():
                reply["status"] = Status.OUT_OF_MEMORY
            if reply.get("status") == Status.OK:
                self._expect_no_other_reply(deadline, seconds)
            return reply

    def _grant_turn(self, message: dict[str, Any]) -> float:
        """Lets the child use the device as it asks, once it may; returns the seconds until then."""
        if message["event"] != "turn" or self._turns is None:
            return 0.0
        try:
            use = LaneUse(str(message.get("use")))
        except ValueError as error:
            raise ChildFailure(Status.CRASHED, f"the harness asked for a turn that there is not: {error}") from error
        waited = self._turns.use(use, self._reporter.should_stop)
        self._send(Request(self.requests, TURN))
        return waited

    def _expect_no_other_reply(self, deadline: float, seconds: float) -> None:
        """ChildFailure when the request gets another reply: kernel code wrote the first one.

        The child answers a ping after the request, and kernel code cannot know the ping's id beforehand.
        """
        ping = secrets.randbits(_PING_BITS)
        self._send(Request(ping, PING))
        while True:
            message = self._next_message(deadline, seconds)
            if "event" in message:
                continue
            if message.get("id") != ping:
                raise _forged()
            return

    def _send(self, request: Request) -> None:
        """ChildFailure where the child reads nothing: a pipe that is full would hold the parent for ever."""
        requests = self._process.stdin
        assert requests is not None
        line = (json.dumps(to_json(request)) + "\n").encode()
        deadline = time.monotonic() + SEND_SECONDS
        # The exit of a child that died between requests is explained where its reply is awaited.
        with contextlib.suppress(BrokenPipeError):
            while line := line[requests.write(line) or 0 :]:
                self._expect_no_stop()
                if time.monotonic() > deadline:
                    raise ChildFailure(Status.TIMED_OUT, f"the child read no request within {SEND_SECONDS:g} s")
                select.select([], [requests], [], _POLL_SECONDS)

    def ask(self, kind: type[T], verb: str, seconds: float, reporter: Reporter, **fields: Any) -> T:
        """The child's reply to one request; raises like `answer`."""
        self.send(verb, **fields)
        return self.answer(kind, seconds, reporter)

    def answer(self, kind: type[T], seconds: float, reporter: Reporter) -> T:
        """As `receive`, with the reply as a dataclass; ChildFailure when it is not one."""
        reply = self.receive(seconds, reporter)
        try:
            return from_json(kind, reply)
        except ValueError as error:
            raise ChildFailure(Status.CRASHED, f"the harness sent a reply that is not one: {error}") from error

    def end(self, seconds: float) -> str | None:
        """Waits for the child to end by itself, because some sanitizers report only then; returns the first finding."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        deadline = time.monotonic() + seconds
        while self.alive and time.monotonic() < deadline:
            select.select(
                [lines.descriptor for lines in (self._replies, self._output) if not lines.ended], [], [], _POLL_SECONDS
            )
            self._replies.read()
            self._read_output()
        return self._finding()

    def collect(self, name: str, target: Path, limit: int) -> None:
        """Copies a file that the child wrote into its temp folder to `target`.

        Kernel code may put anything there, so it raises OSError for what is no regular file or is larger than `limit`.
        """
        self.temp.copy(name, Tree(target.parent), target.name, limit)
        with contextlib.suppress(OSError):
            self.temp.remove(name)

    def close(self) -> None:
        """Kills the child with everything it started. Nothing of it is left when this returns; a second time does
        nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        LIVING.discard(self)
        if self.pid is not None:
            self._jail.kill(self.pid)
            self._process.wait()
        if self._cache is not None and self._has_greeted:
            with _logged_failure(self._reporter, "the compilations of this child are not kept"):
                self._cache.keep(self.temp, sandbox.JIT)
        if self._has_greeted and not self.has_headers:
            headers.learn(self.temp)
        if isinstance(self._process, templates.TemplateChild):
            self._process.release()
        elif self._process.stdin is not None:
            self._process.stdin.close()
        self._jail.close()
        os.close(self._replies.descriptor)
        os.close(self._output.descriptor)

    def _next_message(self, deadline: float, seconds: float) -> dict[str, Any]:
        while True:
            line = self._replies.take()
            if line is not None:
                return _parse(line)
            self._expect_no_stop()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise ChildFailure(Status.TIMED_OUT, f"no answer within {seconds:g} s{self._last_words()}")
            self._wait(min(remaining, _POLL_SECONDS))

    def _expect_no_stop(self) -> None:
        reason = self._reporter.should_stop()
        if reason is not None:
            raise Stopped(reason)

    def _wait(self, seconds: float) -> None:
        """Reads what came within `seconds`; ChildFailure once the child is gone and all of its output was read."""
        select.select([lines.descriptor for lines in (self._replies, self._output) if not lines.ended], [], [], seconds)
        # The exit is looked at before the last read, so that a reply written just before it is not lost.
        gone = not self.alive
        self._read_output()
        if self._replies.read():
            return
        if self._replies.ended or gone:
            raise self._explain_exit()

    def _read_output(self) -> None:
        """Passes on what the child printed: a bounded piece, so that one that prints in a loop does not hold the
        parent."""
        for _ in range(16):
            if not self._output.read():
                break
        while (line := self._output.take()) is not None:
            text = printable(line.decode(errors="replace")).rstrip()
            self._tail.append(text)
            self._reporter.log(text)

    def _explain_exit(self) -> ChildFailure:
        try:
            code = self._process.wait(timeout=_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return ChildFailure(Status.CRASHED, f"the child closed its reply channel{self._last_words()}")
        self._output.finish()
        self._read_output()
        finding = self._finding()
        if finding is not None:
            return ChildFailure(Status.WRONG, finding, Fault.SANITIZER)
        words = self._last_words()
        # A thrown bad_alloc ends in SIGABRT; the words alone prove nothing, kernel code may have printed them for fun.
        if (code in (-signal.SIGABRT, 1) and _speaks_of_memory(self._tail)) or self._shim_lacked_memory():
            return ChildFailure(Status.OUT_OF_MEMORY, f"the child ran out of memory{words}")
        if code == -signal.SIGKILL:
            return ChildFailure(
                Status.OUT_OF_MEMORY, f"the child was killed by the system, most likely for its memory{words}"
            )
        if code < 0:
            return ChildFailure(Status.CRASHED, f"the child was ended by {_signal_name(-code)}{words}")
        return ChildFailure(Status.CRASHED, f"the child exited with status {code}{words}")

    def _shim_lacked_memory(self) -> bool:
        return _speaks_of_memory(line for line in self._tail if _SHIM_WORDS in line)

    def _finding(self) -> str | None:
        with contextlib.suppress(OSError):
            return first_finding(self._sanitizer.name, self.temp) if self._sanitizer is not None else None
        return None

    def _last_words(self) -> str:
        doing = f", last seen at {self._doing!r}" if self._doing else ""
        return doing + ("; its last words:\n" + "\n".join(self._tail) if self._tail else "")


@contextlib.contextmanager
def _logged_failure(reporter: Reporter, effect: str) -> Iterator[None]:
    """A cache only saves time, so a full disk or a strange file in it must not end a job."""
    try:
        yield
    except OSError as error:
        reporter.log(f"{effect}: {error}")


def _cut(reply: dict[str, Any], field: str, limit: int) -> None:
    """Shortens what a reply says in this field, whose end says more than its beginning."""
    text = reply.get(field)
    if isinstance(text, str) and len(text) > limit:
        reply[field] = f"[{len(text) - limit} characters were cut] {text[-limit:]}"


def _signal_name(number: int) -> str:
    """Python has names for the first and the last of the real-time signals alone, and a process may end by any."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _speaks_of_memory(lines: Iterable[str]) -> bool:
    return any(word in line for line in lines for word in _MEMORY_WORDS)


def _forged() -> ChildFailure:
    message = "The child answered twice: the variant writes replies of its own"
    return ChildFailure(Status.WRONG, message, Fault.FORGED_REPLY)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        return parse_reply(line)
    except ValueError:
        message = f"the child wrote to its reply channel: {line[:200]!r}"
        raise ChildFailure(Status.CRASHED, message) from None
