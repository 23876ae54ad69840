"""A worker in a bad place: it pauses instead of failing job after job, and what cannot be stored ends at once."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.db.conftest import ENVIRONMENT, PEAKS, World, make_world, outcome
from tests.db.conftest import world as world
from tests.server.conftest import lease as lease
from tests.server.conftest import served as served
from tests.server.conftest import settings as settings
from tests.worker.conftest import Diary
from warpwatch.contract.claims import ClaimedJob
from warpwatch.contract.environment import key_of
from warpwatch.contract.outcome import Finding, Outcome
from warpwatch.contract.words import Reason, Status
from warpwatch.db import registry, runs
from warpwatch.db.worker_keys import add_key
from warpwatch.git import UnreachableError, update_mirror
from warpwatch.settings import Settings
from warpwatch.worker import loop, outages
from warpwatch.worker.host import Host
from warpwatch.worker.http_coordinator import HttpCoordinator, connect_to_server
from warpwatch.worker.reporter import CannotRunError, UnhealthyError
from warpwatch.worker.trees import TreeError

Script = Callable[[], Outcome]


class StubTools:
    """Knows its device without a child."""

    def __init__(self, host: Any) -> None:
        self.host = host

    def identify(self, _reporter: object) -> tuple[Any, dict[str, float]]:
        return replace(ENVIRONMENT, key=key_of(ENVIRONMENT.facts)), PEAKS

    def close(self) -> None:
        """Has nothing open."""


class Bench:
    """A worker in this process whose jobs do what a test says."""

    def __init__(self, world: World, server: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.jobs = 0
        self.script: Script = outcome
        self.pauses: list[float] = []
        home.mkdir()
        monkeypatch.setattr(loop, "Tools", StubTools)
        monkeypatch.setattr(loop, "execute", lambda *_arguments: self.script())
        stop = threading.Event()
        monkeypatch.setattr(stop, "wait", self._wait)
        with world.database.session() as s:
            connect = connect_to_server(server, add_key(s, "bench"), home / "undelivered")
        self.worker = loop._Worker(Settings(home), "cpu", connect, stop)
        self.state_while_paused: list[str] = []

    def run(self, script: Script, **about: Any) -> tuple[str, str | None]:
        """State and reason of a new job that does this. about: the job, such as its commit."""
        self.script = script
        self.jobs += 1
        # More urgent than the jobs before, which may be waiting for their next attempt.
        job_id = self.world.job(priority=self.jobs, **about)
        self.attempt(job_id)
        job = self.world.look(job_id)
        return job.state, job.reason

    def attempt(self, job_id: int) -> None:
        """Runs the job, which is the most urgent one, without the pause after its attempt before."""
        with self.world.database.session() as s:
            s.execute(text("UPDATE jobs SET not_before = NULL WHERE id = :id"), {"id": job_id})
        claimed = asyncio.run(self._claim())
        assert claimed is not None
        assert claimed.job_id == job_id
        self.worker.handle(claimed)

    async def _claim(self) -> ClaimedJob | None:
        coordinator = self.worker.coordinator
        assert isinstance(coordinator, HttpCoordinator)
        async with coordinator._claims() as client:
            return await coordinator._claim(client)

    def _wait(self, seconds: float) -> bool:
        with self.world.database.session() as s:
            worker = next(row for row in registry_workers(s) if row.name == f"bench/{self.worker.name}")
            self.state_while_paused.append(worker.state)
        self.pauses.append(seconds)
        return False


def registry_workers(s: Any) -> list[Any]:
    from warpwatch.db.reads.devices import list_workers

    return list(list_workers(s))


@pytest.fixture
def bench(served: Settings, database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(make_world(database), served.local_url, tmp_path / "worker", monkeypatch)
    yield made
    made.worker.close()


def failing(error: Exception) -> Script:
    def script() -> Outcome:
        raise error

    return script


FULL = OSError(errno.ENOSPC, "No space left on device")
DESCRIPTORS = OSError(errno.EMFILE, "Too many open files")
NO_CHILD = CannotRunError("the harness did not start", retry=True, reason=Reason.HOST_FAULT)


@pytest.fixture
def sick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that fails without any commit as well."""
    monkeypatch.setattr(loop, "find_trouble", lambda *_: "it starts no child")


@pytest.fixture
def well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that works without the commit; `find_trouble` finds that out below."""
    monkeypatch.setattr(loop, "find_trouble", lambda *_: None)


@pytest.mark.usefixtures("sick")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FULL, Reason.DISK_FULL),
        (DESCRIPTORS, Reason.HOST_FAULT),
        (NO_CHILD, Reason.HOST_FAULT),
        (ZeroDivisionError(), Reason.INTERNAL_ERROR),
        (CannotRunError("git", retry=True, reason=Reason.GIT_UNREACHABLE), Reason.GIT_UNREACHABLE),
        (UnhealthyError("hot"), Reason.UNFIT_DEVICE),
    ],
)
def test_every_failure_has_its_reason_and_is_tried_again(bench: Bench, error: Exception, expected: Reason) -> None:
    assert bench.run(failing(error)) == ("queued", expected)


@pytest.mark.usefixtures("well")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FULL, Reason.INTERNAL_ERROR),
        (DESCRIPTORS, Reason.INTERNAL_ERROR),
        (TreeError(errno.ELOOP, "a link"), Reason.INTERNAL_ERROR),
        (NO_CHILD, None),
    ],
)
def test_what_a_commit_alone_meets_is_no_outage(bench: Bench, error: Exception, expected: Reason | None) -> None:
    """The machine writes, checks out and starts a child without it, so it loses its attempts, and nobody waits."""
    job_id = bench.world.job()
    states = []
    for _ in range(runs.ATTEMPTS):
        bench.script = failing(error)
        bench.attempt(job_id)
        states.append(bench.world.look(job_id).state)
    assert states == ["queued", "queued", "failed"]
    job = bench.world.look(job_id)
    assert (job.reason, job.outages) == (expected, 0)
    assert str(error) in job.message
    assert bench.pauses == []
    assert bench.run(outcome) == ("done", None)


@pytest.mark.usefixtures("well")
@pytest.mark.parametrize("error", [ZeroDivisionError(), UnhealthyError("hot")])
def test_one_commit_stops_no_device_and_two_may(bench: Bench, error: Exception) -> None:
    for _ in range(2 * loop.FAILURES_BEFORE_PAUSE):
        bench.run(failing(error))
    assert bench.pauses == []
    bench.run(failing(error), commit=1)
    assert len(bench.pauses) == 1


def test_a_machine_that_works_has_no_trouble(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outages.find_trouble(host, Diary()) is None
    assert [*(host.home / "worktrees").iterdir()] == []
    no_harness = replace(host, bootstrap=host.home / "nothing.py")
    assert "did not start" in str(outages.find_trouble(no_harness, Diary()))
    monkeypatch.setattr(outages, "own_prefix", lambda: "no/such/folder" * 500)
    assert "File name too long" in str(outages.find_trouble(host, Diary()))
    monkeypatch.setattr(outages, "LEAST_FREE_BYTES", 2**63)
    assert outages.find_trouble(host, Diary()) == "its disk is full"


@pytest.mark.usefixtures("sick")
def test_another_commit_is_the_first_after_a_pause(bench: Bench) -> None:
    for _ in range(loop.FAILURES_BEFORE_PAUSE):
        bench.run(failing(DESCRIPTORS))
    assert bench.pauses == [loop.FIRST_PAUSE_SECONDS]
    job_id = bench.world.job(commit=1)
    with bench.world.database.session() as s:
        # The pause is over.
        s.execute(text("UPDATE jobs SET not_before = not_before - make_interval(secs => :seconds)"), {"seconds": 30})
        worker = next(row for row in registry_workers(s) if row.name == f"bench/{bench.worker.name}")
        claimed = runs.claim_next(s, bench.world.device, worker.id)
    assert claimed is not None
    assert claimed.job_id == job_id
    with bench.world.database.session() as s:
        assert runs.claim_next(s, bench.world.device, worker.id) is None


@pytest.mark.usefixtures("sick")
def test_a_worker_pauses_after_failures_of_its_machine_and_resumes(bench: Bench) -> None:
    for _ in range(loop.FAILURES_BEFORE_PAUSE - 1):
        bench.run(failing(FULL))
    assert bench.pauses == []
    bench.run(failing(FULL))
    bench.run(failing(FULL))
    assert bench.pauses == [loop.FIRST_PAUSE_SECONDS, 2 * loop.FIRST_PAUSE_SECONDS]
    assert bench.state_while_paused == ["paused", "paused"]
    with bench.world.database.session() as s:
        assert {row.state for row in registry_workers(s) if row.name == f"bench/{bench.worker.name}"} == {"alive"}
    assert bench.run(outcome) == ("done", None)
    bench.run(failing(FULL))
    assert len(bench.pauses) == 2


def test_a_worker_stops_before_its_disk_is_full(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def script() -> Outcome:
        ran.append(1)
        return outcome()

    monkeypatch.setattr(outages, "free_bytes", lambda folder: 2**29)
    assert bench.run(script) == ("queued", Reason.DISK_FULL)
    assert ran == []
    monkeypatch.setattr(outages, "free_bytes", lambda folder: 2**31)
    assert bench.run(script) == ("done", None)


@pytest.mark.parametrize("reason", [None, Reason.GIT_UNREACHABLE, Reason.INTERPRETER_MISMATCH])
def test_a_worker_does_not_pause_for_what_is_not_its_own(bench: Bench, reason: Reason | None) -> None:
    for _ in range(loop.FAILURES_BEFORE_PAUSE + 1):
        bench.run(failing(CannotRunError("not here", retry=True, reason=reason)))
    assert bench.pauses == []


def strange(**changes: Any) -> Script:
    def script() -> Outcome:
        usual = outcome()
        finding = usual.findings[0]
        assert finding.bench is not None
        return replace(usual, findings=[replace(finding, bench=replace(finding.bench, **changes))])

    return script


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"deeper": value}
    return value


@pytest.mark.parametrize(
    "script",
    [
        strange(health=deep(2000)),
        strange(measurements=[replace(outcome().findings[0].bench.measurements[0], dropped=2**63)]),  # type: ignore[union-attr]
        lambda: outcome(findings=[Finding("v\0", "n=16 f32 fwd", Status.OK)]),
        lambda: outcome(findings=[Finding("v\ud800", "n=16 f32 fwd", Status.OK)]),
        lambda: outcome(findings=[Finding("v1", "a case without a catalogue", Status.OK)]),
    ],
    ids=["deep", "large", "nul", "surrogate", "unknown"],
)
def test_an_outcome_that_cannot_be_stored_ends_its_job_at_once(bench: Bench, script: Script) -> None:
    assert bench.run(script) == ("failed", Reason.UNSTORABLE)
    assert bench.pauses == []
    assert bench.run(outcome) == ("done", None)


def test_a_git_host_that_is_away_is_an_outage(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        update_mirror(str(tmp_path / "nowhere"), tmp_path / "home")
    assert outages.reason_of(caught.value, tmp_path) is Reason.GIT_UNREACHABLE


def test_a_disk_without_space_explains_any_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outages.reason_of(RuntimeError(), tmp_path) is None
    monkeypatch.setattr(outages, "LEAST_FREE_BYTES", 2**63)
    assert outages.reason_of(RuntimeError(), tmp_path) is Reason.DISK_FULL


def test_registering_again_ends_a_pause(bench: Bench) -> None:
    with bench.world.database.session() as s:
        worker = registry.register_worker(s, "node-9-cpu", bench.world.device, "0", {})
        registry.pause_worker(s, worker, 600, Reason.HOST_FAULT)
    with bench.world.database.session() as s:
        registry.register_worker(s, "node-9-cpu", bench.world.device, "0", {})
        assert {row.pause_reason for row in registry_workers(s)} == {None}
