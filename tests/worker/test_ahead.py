"""Native libraries of waiting jobs are built before the jobs are claimed, and never beside what is timed on the CPU."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until
from tests.worker.conftest import Diary, Repository, processes_with
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import JobKind, Status
from warpwatch.worker import ahead, headers
from warpwatch.worker.ahead import BuildAhead
from warpwatch.worker.building import BuiltLibrary, build
from warpwatch.worker.host import Host
from warpwatch.worker.tools import Tools

SOURCE = 'extern "C" int answer() { return 42; }'
USER = 'operator = Operator("user", uses=("second", "../first", "missing"))'


@pytest.fixture
def sha(repository: Repository) -> str:
    names = ("first", "second")
    files = {f"csrc/{name}/{name}.cpp": f"{SOURCE} // {name}" for name in names} | {"kernels/user.py": USER}
    return repository.commit("two", files | {f"kernels/{name}.py": "" for name in names})


@pytest.fixture
def request_of(repository: Repository, sha: str) -> Callable[[str, JobKind], JobRequest]:
    return lambda operator, kind: JobRequest(kind, repository.url, sha, operator)


@pytest.fixture
def queue() -> list[JobRequest]:
    return []


@pytest.fixture
def building(host: Host, queue: list[JobRequest]) -> Iterator[BuildAhead]:
    building = BuildAhead(Tools(host), lambda: queue)
    yield building
    building.close()


def stored(host: Host) -> int:
    return len(list((host.home / "libraries").glob("[0-9a-f]*/record.json")))


def is_cached(host: Host, request: JobRequest, library: str) -> bool:
    tools = Tools(host)
    try:
        (checkout,) = tools.checkouts(request.url, [request.sha], Diary())
        reply = checkout.build([library], Diary())
    finally:
        tools.close()
    assert reply.status is Status.OK
    return reply.cached


def test_the_library_of_a_waiting_job_is_there_before_its_turn(
    host: Host, building: BuildAhead, queue: list[JobRequest], request_of: Callable[[str, JobKind], JobRequest]
) -> None:
    queue.append(request_of("second", JobKind.BENCH))
    with building.beside(request_of("first", JobKind.CHECK), Diary()):
        wait_until(lambda: stored(host) == 1)
    assert building._tools.upcoming == queue[0]
    assert is_cached(host, queue[0], "second")
    assert not is_cached(host, queue[0], "first"), "a job that runs builds what it needs itself"


def test_an_operator_gets_the_libraries_that_it_names(
    host: Host, building: BuildAhead, queue: list[JobRequest], request_of: Callable[[str, JobKind], JobRequest]
) -> None:
    """A name is the commit's own and may be a path."""
    queue.append(request_of("user", JobKind.BENCH))
    with building.beside(request_of("first", JobKind.CHECK), Diary()):
        wait_until(lambda: stored(host) == 1)
    assert is_cached(host, queue[0], "second")


@pytest.mark.parametrize("kind", [JobKind.BENCH, JobKind.COMPARE])
def test_nothing_is_built_beside_what_is_timed_on_the_cpu(
    host: Host,
    building: BuildAhead,
    queue: list[JobRequest],
    request_of: Callable[[str, JobKind], JobRequest],
    kind: JobKind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue.append(request_of("second", JobKind.BENCH))
    looked = threading.Event()
    original = ahead._libraries

    def noted(*words: Any) -> list[str]:
        looked.set()
        return original(*words)

    monkeypatch.setattr(ahead, "_libraries", noted)
    with building.beside(request_of("first", kind), Diary()):
        assert not looked.wait(1.0)
    wait_until(lambda: stored(host) == 1)


def are_stopped(processes: Sequence[int]) -> bool:
    states = [Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] for process in processes]
    return set(states) == {"T"}


@pytest.mark.parametrize("kind", [JobKind.BENCH, JobKind.COMPARE])
def test_a_build_that_has_begun_is_stopped_beside_what_is_timed_on_the_cpu(
    building: BuildAhead, queue: list[JobRequest], repository: Repository, kind: JobKind
) -> None:
    """The compiler would read its own output for ever."""
    endless = '#include "endless/endless.cpp"\n' * 2
    sha = repository.commit("endless", {"csrc/endless/endless.cpp": endless, "kernels/endless.py": ""})
    queue.append(JobRequest(JobKind.CHECK, repository.url, sha, "endless"))
    compilers = partial(processes_with, "endless/endless.cpp")
    with building.beside(JobRequest(JobKind.CHECK, repository.url, sha, "other"), Diary()):
        wait_until(lambda: any("cc1plus" in Path(f"/proc/{process}/cmdline").read_text() for process in compilers()))
        started = compilers()
        assert not are_stopped(started)
    with building.beside(JobRequest(kind, repository.url, sha, "other"), Diary()):
        # A process that waits for a core is stopped when it gets one.
        wait_until(lambda: are_stopped(started))
    wait_until(lambda: not are_stopped(started))


def test_a_timed_job_waits_for_its_own_library(
    host: Host,
    building: BuildAhead,
    queue: list[JobRequest],
    request_of: Callable[[str, JobKind], JobRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, may_end, events = threading.Event(), threading.Event(), list[str]()

    def slow(*words: object) -> BuiltLibrary:
        began.set()
        may_end.wait(30)
        events.append("built")
        return build(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(ahead, "build", slow)
    queue.append(request_of("second", JobKind.CHECK))
    with building.beside(request_of("first", JobKind.CHECK), Diary()):
        assert began.wait(30)
    threading.Timer(0.5, may_end.set).start()
    with building.beside(request_of("second", JobKind.BENCH), Diary()):
        events.append("timed")
    assert events == ["built", "timed"]


@pytest.mark.parametrize(
    ("code", "compiles"),
    [
        ("from ._compiled import compiled", True),
        ("v1 = torch.compile(v2)", True),
        ('"""Shapes for torch.compile."""\nre.compile("x")', False),
    ],
)
def test_what_calls_torch_compile_is_found_by_its_names(code: str, compiles: bool) -> None:
    assert ahead._compiles(ast.walk(ast.parse(code))) is compiles


def test_a_job_that_compiles_waits_for_the_headers_that_are_made_for_it(
    repository: Repository, building: BuildAhead, queue: list[JobRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"kernels/compiling.py": "@torch.compile\ndef v1(x): ...", "kernels/plain.py": ""}
    sha = repository.commit("compiling", files)
    plain, compiling = (JobRequest(JobKind.CHECK, repository.url, sha, name) for name in ("plain", "compiling"))
    began, may_end, events = threading.Event(), threading.Event(), list[str]()

    def make(*_: object) -> None:
        began.set()
        may_end.wait(30)
        events.append("made")

    monkeypatch.setattr(headers, "make", make)
    queue.append(compiling)
    with building.beside(plain, Diary()):
        assert began.wait(30)
        events.append("plain")
    threading.Timer(0.5, may_end.set).start()
    with building.beside(compiling, Diary()):
        events.append("compiling")
    assert events == ["plain", "made", "compiling"]
    assert building._host.stopwatch.take().compile >= 0.4, "what it waited for"


def test_a_cancelled_job_does_not_wait(
    building: BuildAhead,
    queue: list[JobRequest],
    request_of: Callable[[str, JobKind], JobRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow(*words: object) -> None:
        began.set()
        may_end.wait(30)

    monkeypatch.setattr(ahead, "build", slow)
    queue.append(request_of("second", JobKind.CHECK))
    with building.beside(request_of("first", JobKind.CHECK), Diary()):
        assert began.wait(30)
    with building.beside(request_of("first", JobKind.BENCH), Diary(stop_after=0)):
        may_end.set()


def test_closing_ends_a_build(
    host: Host, queue: list[JobRequest], repository: Repository, tmp_path: Path, no_leftovers: None
) -> None:
    """The compiler would read its own output for ever."""
    endless = '#include "endless/endless.cpp"\n' * 2
    sha = repository.commit("endless", {"csrc/endless/endless.cpp": endless, "kernels/endless.py": ""})
    building = BuildAhead(Tools(host), lambda: queue)
    queue.append(JobRequest(JobKind.CHECK, repository.url, sha, "endless"))
    with building.beside(JobRequest(JobKind.CHECK, repository.url, sha, "other"), Diary()):
        wait_until(lambda: processes_with("--build"))
    building.close()
    assert stored(host) == 0
    assert list((host.home / "worktrees").glob("*-ahead-*")) == []


def test_what_cannot_be_read_is_left_to_its_job(
    host: Host, building: BuildAhead, queue: list[JobRequest], request_of: Callable[[str, JobKind], JobRequest]
) -> None:
    good = request_of("second", JobKind.CHECK)
    queue += [
        JobRequest(JobKind.CHECK, good.url, "0" * 40, "first"),
        JobRequest(JobKind.CHECK, "/none", good.sha, "first"),
    ]
    queue += [request_of("../../etc", JobKind.CHECK), request_of("unknown", JobKind.CHECK), good]
    with building.beside(request_of("first", JobKind.CHECK), Diary()):
        wait_until(lambda: stored(host) == 1)
