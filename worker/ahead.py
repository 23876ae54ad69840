"""Builds the native libraries of the jobs that wait for this worker, on idle cores, while another job runs, and for
torch.compile on a CPU what torch precompiles of its headers.

A job that finds its libraries in the store loses no device time to compilers. Beside a GPU, builds run at low priority
and leave some cores to the threads that feed it. On the CPU device a build would disturb what is timed, so none begins
beside a bench or a comparison, and the processes of one that has begun are stopped meanwhile.
"""

from __future__ import annotations

import ast
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from warpwatch.contract.activities import Activity
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import JobKind
from warpwatch.git import GitError
from warpwatch.project import Project, ProjectError
from warpwatch.sources import parse_python
from warpwatch.worker.building import BuildRequest, LibraryStore, build, is_name, spare_cores, step_back
from warpwatch.worker.mirrors import mirror_commit
from warpwatch.worker.reporter import CannotRunError, Reporter, SilentReporter, Stopped
from warpwatch.worker.tools import Tools
from warpwatch.worker.trees import Tree
from warpwatch.worker.worktrees import lay_out

JOBS = 16
"""Jobs at the head of the queue that are looked at."""
_MOST_BUILDS = 4
_CORES_PER_BUILD = 4
_POLL_SECONDS = 0.1
_REMEMBERED = 10_000
_SOURCE_BYTES = 2**24
_TIMED = (JobKind.BENCH, JobKind.COMPARE)
_log = logging.getLogger(__name__)

Target = tuple[str, str, str]
"""URL, commit and operator: of the definitions, where they lie beside the commit."""
_HEADERS: Target = ("", "", "torch's headers")
"""The target of torch's headers. Every operator that calls torch.compile on a CPU waits for this target."""


class BuildAhead:
    """Threads that build ahead, woken by every job that begins. Close it before the worker ends.

    They tell the worker's tools which job comes next.
    """

    def __init__(self, tools: Tools, read_queue: Callable[[], Sequence[JobRequest]]) -> None:
        self._tools = tools
        self._host = host = tools.host
        self._read_queue = read_queue
        builds = max(1, min(_MOST_BUILDS, len(spare_cores()) // _CORES_PER_BUILD)) if host.kind == "cuda" else 1
        self._changed = threading.Condition()
        self._seen: set[Target] = set()
        self._building: set[Target] = set()
        self._compiling: set[Target] = set()
        self._paused = 0
        self._timing = self._closed = False
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="looking-ahead")
        initializer = step_back if host.kind == "cuda" else None
        self._builders = ThreadPoolExecutor(builds, "building-ahead", initializer)

    def close(self) -> None:
        """Ends running builds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._looking.shutdown(cancel_futures=True)
        self._builders.shutdown(cancel_futures=True)

    @contextmanager
    def beside(self, request: JobRequest, reporter: Reporter) -> Iterator[None]:
        """Builds for other jobs while the block executes this one, and before it what this one waits for."""
        targets = set(_targets(request))
        with self._changed:
            self._seen |= targets
            awaited = targets | ({_HEADERS} if targets & self._compiling else set())
            with self._host.stopwatch.measure(Activity.COMPILE):
                while self._building & awaited and reporter.should_stop() is None:
                    self._changed.wait(_POLL_SECONDS)
            self._timing = self._host.kind == "cpu" and request.kind in _TIMED
            while self._timing and len(self._building) > self._paused and reporter.should_stop() is None:
                self._changed.wait(_POLL_SECONDS)
        self._looking.submit(self._look)
        try:
            yield
        finally:
            with self._changed:
                self._timing = False
                self._changed.notify_all()

    def _look(self) -> None:
        """Builds for the jobs that have come to the head of the queue."""
        try:
            waiting = self._read_queue()
            self._tools.upcoming = next(iter(waiting), None)
            targets = [target for request in waiting for target in _targets(request)]
            with self._changed:
                if len(self._seen) > _REMEMBERED:
                    self._seen.clear()
                    self._compiling.clear()
                new = [target for target in dict.fromkeys(targets) if target not in self._seen]
                self._seen.update(new)
            for url, sha in dict.fromkeys((url, sha) for url, sha, _ in new):
                self._build_commit(url, sha, [target for target in new if target[:2] == (url, sha)])
        except Exception:  # noqa: BLE001 - jobs build what is missing themselves, and report what is wrong
            _log.warning("could not build ahead", exc_info=True)

    def _build_commit(self, url: str, sha: str, targets: Sequence[Target]) -> None:
        home = self._host.home
        folder = home / "worktrees" / f"{socket.gethostname()}-{os.getpid()}-ahead-{sha[:12]}"
        with suppress(GitError, ProjectError, CannotRunError):
            commit = mirror_commit(self._host.settings, self._host.confinement().isolation, url, sha)
            project = commit.project
            if project.image is not None:
                # Getting an image takes the network and the disk from what is measured now.
                return
            with lay_out(commit, folder) as trees:
                if self._host.kind == "cpu":
                    # They take longest, so they come first.
                    self._precompile(trees.root, project, targets)
                builds = [partial(self._build, trees.root, project, target[2]) for target in targets]
                list(self._builders.map(self._make, targets, builds))

    def _precompile(self, root: Tree, project: Project, targets: Sequence[Target]) -> None:
        """Lets torch's headers be made if any of these operators will need them."""
        compiling = {target for target in targets if _compiles(_nodes(root, project, target[2]))}
        if compiling:
            with self._changed:
                self._compiling |= compiling
            make = partial(self._host.precompile_headers, project.interpreter, self.should_stop)
            self._builders.submit(self._make, _HEADERS, make)

    def _make(self, target: Target, make: Callable[[], None]) -> None:
        """Makes something for one operator, or for several, once nothing is timed on this CPU."""
        with self._changed:
            while self._timing and not self._closed:
                self._changed.wait()
            if self._closed:
                return
            self._building.add(target)
        try:
            make()
        except (Stopped, CannotRunError) as error:
            _log.info("stopped building %s ahead: %s", target[2], error)
        finally:
            with self._changed:
                self._building.discard(target)
                self._changed.notify_all()

    def _build(self, root: Tree, project: Project, operator: str) -> None:
        store, settings = LibraryStore(self._host.home / "libraries"), self._host.settings
        for name in _libraries(root, project, operator):
            request = BuildRequest(root.place, project.native, name, self._host.kind, project.interpreter)
            build(request, store, self._host.confinement(), settings.build_timeout_seconds, _BuildReporter(self))

    def should_stop(self) -> str | None:
        """For the thread of a build, which asks again and again; returns only when nothing is timed on this CPU."""
        with self._changed:
            if self._timing and not self._closed:
                self._pause()
            return "the worker stops" if self._closed else None

    def _pause(self) -> None:
        """Stops the processes of this thread until nothing is timed any more."""
        stopped = _stop_processes()
        if stopped is None:
            # Then what is timed waits for the build.
            return
        self._paused += 1
        self._changed.notify_all()
        while self._timing and not self._closed:
            self._changed.wait()
        self._paused -= 1
        _send(stopped, signal.SIGCONT)


class _BuildReporter(SilentReporter):
    """Reports builds that belong to no run."""

    def __init__(self, ahead: BuildAhead) -> None:
        self._ahead = ahead

    def log(self, text: str) -> None:
        _log.debug("%s", text)

    def should_stop(self) -> str | None:
        return self._ahead.should_stop()


def _stop_processes() -> set[int] | None:
    """Stops all processes that this thread has started, and theirs; None where the system does not list them."""
    stopped: set[int] = set()
    try:
        # Processes may start others until they are stopped, so what is new is looked for once more.
        while new := _descendants(f"/proc/self/task/{threading.get_native_id()}") - stopped:
            stopped |= new
            _send(new, signal.SIGSTOP)
    except OSError:
        _send(stopped, signal.SIGCONT)
        return None
    return stopped


def _descendants(thread: str) -> set[int]:
    """The processes below a thread; OSError where the system does not list those of a thread."""
    found: set[int] = set()
    for child in Path(thread, "children").read_text().split():
        found.add(int(child))
        for task in Path("/proc", child, "task").glob("*"):
            with suppress(FileNotFoundError, ProcessLookupError):
                found |= _descendants(str(task))
    return found


def _send(processes: Iterable[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _targets(request: JobRequest) -> list[Target]:
    if request.patch is not None:
        # Its commit comes with the job, and somebody waits for that alone.
        return []
    if request.definitions is not None:
        return [(request.definitions.url, request.definitions.sha, request.operator)]
    shas = [request.sha, request.base_sha] if request.base_sha else [request.sha]
    return [(request.url, sha, request.operator) for sha in shas]


def _nodes(root: Tree, project: Project, operator: str) -> list[ast.AST]:
    """The syntax nodes of an operator's file, which is not run; an empty list where the file cannot be read."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return list(ast.walk(parse_python(root.read(f"{project.operators}/{operator}.py", _SOURCE_BYTES))))
    return []


def _compiles(nodes: Iterable[ast.AST]) -> bool:
    """Whether code most likely calls torch.compile: by that name, or by something like it that it imports."""
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr="compile"):
                return True
            case ast.alias(name=name) if name.startswith("compile"):
                return True
    return False


def _libraries(root: Tree, project: Project, operator: str) -> list[str]:
    """The libraries that an operator most likely loads."""
    names = [operator]
    with suppress(ValueError, RecursionError, MemoryError):
        for node in _nodes(root, project, operator):
            if isinstance(node, ast.keyword) and node.arg == "uses":
                names = [str(name) for name in ast.literal_eval(node.value)]
    sources = {name: root.find(f"{project.native}/{name}") for name in names if is_name(name)}
    return [name for name, entry in sources.items() if entry is not None and entry.is_folder]
