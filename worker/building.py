"""Builds native libraries: compilers run in a jail of their own, and the parent keeps what they make.

A library is stored under its interpreter and the hash of its sources, flags, compilers and torch, in a folder that no
child sees. The key is asked for before a compiler has read the sources, so a source that takes over the compiler can
only spoil the library of that very source. A child sees the libraries that were laid out for it, read-only.

Nothing here needs the device, so a library can be built ahead of the job that uses it, and several at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.messages import BuildReply
from warpwatch.contract.words import Reason, Status
from warpwatch.worker.child import Child, ChildFailure, ChildSpec
from warpwatch.worker.devices import usable_cores
from warpwatch.worker.reporter import CannotRunError, Reporter
from warpwatch.worker.sandbox import Confinement
from warpwatch.worker.trees import Tree

LIBRARY = "library.so"
RECORD = "record.json"
LIBRARY_LIMIT = 2**30
"""Bytes of one library."""
KEY_SECONDS = 60.0
"""Limit for asking which library it would be; compilers are asked for their versions."""
_FOLDER = "libraries"
_NICENESS = 19
_KEY = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"\w[\w.-]{0,200}")


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One library to build.

    root: the worktree. native: the folder of native sources in it. device_kind: "cpu" or "cuda". interpreter: the
    Python whose torch the library is for, None for the worker's own. sanitize: whether for AddressSanitizer. variables:
    what the compilers' environment has besides, such as CXXFLAGS.
    """

    root: Path
    native: str
    operator: str
    device_kind: str
    interpreter: str | None = None
    sanitize: bool = False
    variables: tuple[tuple[str, str], ...] = ()


def spare_cores() -> list[int]:
    """The cores that builds may use beside a GPU: the first ones are those that children use first."""
    cores = usable_cores()
    return cores[len(cores) // 4 :]


def step_back() -> None:
    """Leaves a GPU's host threads their cores and their priority; the processes of this thread inherit that."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        os.sched_setaffinity(0, spare_cores())


def is_name(operator: str) -> bool:
    """Whether an operator's name can be that of a folder; names are the commit's own."""
    return _NAME.fullmatch(operator) is not None


@dataclass(frozen=True, slots=True)
class LibraryStore:
    """Every library that was ever built on this machine, by address."""

    folder: Path

    def find(self, address: str) -> BuildReply | None:
        try:
            return from_json(BuildReply, json.loads((self.folder / address / RECORD).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError):
            return None

    def remove(self, address: str) -> None:
        shutil.rmtree(self.folder / address, ignore_errors=True)

    def add(self, address: str, root: Tree, name: str, reply: BuildReply) -> None:
        """Takes a new library, `name` below `root`; OSError when it is no regular file of acceptable size.

        The first of two builders wins.
        """
        partial = self.folder / f"{address}.{os.getpid()}-{time.monotonic_ns()}"
        partial.mkdir(parents=True)
        try:
            root.copy(name, Tree(partial), LIBRARY, LIBRARY_LIMIT, permissions=0o555)
            (partial / RECORD).write_text(json.dumps(to_json(reply)), encoding="utf-8")
            if not (self.folder / address).exists():
                partial.rename(self.folder / address)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class BuiltLibrary:
    """The result of one build. folder: where the library and its record lie, None without one."""

    reply: BuildReply
    folder: Path | None = None

    def lay_out(self, target: Path) -> None:
        """Puts library and record, or the reason why there is none, where a child looks for them. CannotRunError where
        another library lies there then."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        if self.folder is not None:
            os.link(self.folder / LIBRARY, target / LIBRARY)
            if not (target / LIBRARY).samefile(self.folder / LIBRARY):
                raise CannotRunError("another library was laid out", retry=True, reason=Reason.HOST_FAULT)
        (target / RECORD).write_text(json.dumps(to_json(self.reply)), encoding="utf-8")


def merge_replies(replies: Sequence[BuildReply]) -> BuildReply:
    """Merges the replies for all libraries of one operator: the first failure, else one reply for all code."""
    failed = next((reply for reply in replies if reply.status is Status.BUILD_FAILED), None)
    built = [reply for reply in replies if reply.status is Status.OK]
    if failed is not None or len(built) < 2:
        return failed or next(iter(built), replies[0])
    hashes = [reply.code_hash for reply in built]
    return BuildReply(
        Status.OK,
        key=_digest([reply.key for reply in built]),
        cached=all(reply.cached for reply in built),
        seconds=sum(reply.seconds for reply in built),
        log="\n".join(reply.log for reply in built),
        resources=[kernel for reply in built for kernel in reply.resources],
        compile_seconds=sum(reply.compile_seconds for reply in built),
        code_hash=_digest(hashes)[:16] if all(hashes) else "",
    )


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def build(
    request: BuildRequest, store: LibraryStore, confinement: Confinement, seconds: float, reporter: Reporter
) -> BuiltLibrary:
    """Builds a library unless the store has it. Compilers that fail, hang or crash give a failed build.

    Raises Stopped when the reporter asks to stop, CannotRunError where the jail or the interpreter does not start.
    """
    begin = time.monotonic()
    spec = ChildSpec(
        request.root,
        request.device_kind,
        request.root,
        0,
        native=request.native,
        interpreter=request.interpreter,
        builds="address" if request.sanitize else "plain",
        variables=request.variables,
    )
    child = Child(spec, confinement, reporter)
    try:
        child.wait_ready()
        planned = child.ask(BuildReply, "key", KEY_SECONDS, reporter, operator=request.operator)
        if planned.status is not Status.OK or not _KEY.fullmatch(planned.key):
            return BuiltLibrary(planned)
        image = confinement.image
        where = f"{image.digest if image is not None else ''}{spec.command(image)[0]}"
        address = hashlib.sha256(f"{where}\0{planned.key}".encode()).hexdigest()
        stored = store.find(address)
        if stored is not None and stored.key != planned.key:
            # Another library lies where this one belongs.
            store.remove(address)
            stored = None
        if stored is None:
            reply = child.ask(BuildReply, "build", seconds, reporter, operator=request.operator)
            if reply.status is not Status.OK:
                return BuiltLibrary(reply)
            name = f"{_FOLDER}/{planned.key}/{LIBRARY}"
            store.add(address, child.temp, name, replace(reply, key=planned.key))
            return BuiltLibrary(reply, store.folder / address)
        took = time.monotonic() - begin
        return BuiltLibrary(replace(stored, cached=True, seconds=took), store.folder / address)
    except ChildFailure as failure:
        return BuiltLibrary(BuildReply(Status.BUILD_FAILED, failure.message))
    except OSError as error:
        return BuiltLibrary(BuildReply(Status.BUILD_FAILED, f"the compilers left no usable library: {error}"))
    finally:
        child.close()
