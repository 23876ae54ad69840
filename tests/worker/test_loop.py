"""Queue workers as processes: jobs end, are cancelled, change workers and return; no run writes for a job it lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from tests.conftest import FAST_AND_FORGETFUL
from tests.waiting import wait_until
from tests.worker.conftest import Repository, identify, processes_with
from warpwatch.contract.spec import JobSpec
from warpwatch.db import embedded, migrate, registry, submissions
from warpwatch.db.database import Database
from warpwatch.db.models import JobRecord, ResultRecord, RunLogRecord, RunRecord
from warpwatch.worker import levels
from warpwatch.worker.database_coordinator import DatabaseCoordinator

LEASE = "3"
OPERATOR = """
import os, time
from warpwatch import Cost, Operator, case

HOLD = "{hold}"
operator = Operator(
    "patient", "Copies its input.", inputs=lambda case, make: {{"x": make.normal(case["n"])}},
    reference=lambda x: x + 0,
    cost=lambda case: Cost(case["n"], 8 * case["n"]), cases={{"quick": (case(n=100),)}},
)


@operator.variant("prompt", idea="at once")
def prompt(x):
    return x.clone()


@operator.variant("spy", idea="looks for the database")
def spy(x):
    for path in ("/proc/%d/environ" % os.getppid(), "{data}/postmaster.pid", "{data}/.s.PGSQL.5432"):
        try:
            found = len(open(path, "rb").read(10)) > 0
        except OSError:
            found = os.path.exists(path) and "SQL" in path
        print("spy:", os.path.basename(path), found, flush=True)
    return x.clone()


@operator.variant("held", idea="waits as long as a file is there")
def held(x):
    print("waiting", flush=True)
    while os.path.exists(HOLD):
        time.sleep(0.05)
    return x.clone()


@operator.variant("after", idea="comes after the one that waits")
def after(x):
    return x.clone()
"""


class Fleet:
    """A database with one repository, and the workers that serve it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.home = folder / "home"
        self.hold = folder / "hold"
        self.database = Database(url)
        self.workers: list[subprocess.Popen[bytes]] = []
        environment = identify(self.home)
        self.repository = Repository(folder / "repository")
        self.repository.commit(
            "good", {"kernels/patient.py": OPERATOR.format(hold=self.hold, data=embedded.data_folder(folder / "home"))}
        )
        sha = self.repository.head()
        with self.database.session() as s:
            self.repository_id = registry.ensure_repository(s, "patient", self.repository.url)
            row = registry.NewCommit(sha, None, 1, "A", datetime.now(UTC), "good")
            self.commit_id = registry.record_commits(s, self.repository_id, [row])[sha]
            self.operator_id = registry.ensure_operators(s, self.repository_id, ["patient"])["patient"]
            self.device_id = registry.ensure_device(s, environment.device_key, "cpu", environment.device_name)

    def start(self) -> subprocess.Popen[bytes]:
        values = {"WARPWATCH_HOME": str(self.home), "WARPWATCH_DATABASE_URL": self.url, "WARPWATCH_LEASE": LEASE}
        log = (self.folder / f"worker-{len(self.workers)}.log").open("wb")
        command = [sys.executable, "-m", "warpwatch", "worker", "--device", "cpu"]
        worker = subprocess.Popen(command, env=os.environ | values, stdout=log, stderr=log, cwd=self.folder)
        self.workers.append(worker)
        return worker

    def submit(self, *variants: str, priority: int = 0) -> int:
        spec = JobSpec(variants=list(variants))
        job = submissions.NewJob("check", self.commit_id, self.operator_id, self.device_id, spec)
        new = submissions.NewSubmission(self.repository_id, {}, [job], priority=priority)
        with self.database.session() as s:
            submission = submissions.create_submission(s, new)
            return s.scalars(select(JobRecord.id).where(JobRecord.submission_id == submission)).one()

    def job(self, job_id: int) -> JobRecord:
        with self.database.session() as s:
            return s.get_one(JobRecord, job_id)

    def runs(self, job_id: int) -> list[RunRecord]:
        with self.database.session() as s:
            return list(s.scalars(select(RunRecord).where(RunRecord.job_id == job_id).order_by(RunRecord.attempt)))

    def results(self, job_id: int) -> list[tuple[int, str]]:
        """(attempt, status) of every result of the job."""
        with self.database.session() as s:
            statement = (
                select(RunRecord.attempt, ResultRecord.status)
                .join(ResultRecord, ResultRecord.run_id == RunRecord.id)
                .where(RunRecord.job_id == job_id)
            )
            return [(row.attempt, row.status) for row in s.execute(statement)]

    def log(self, job_id: int) -> str:
        with self.database.session() as s:
            return "".join(
                s.scalars(
                    select(RunLogRecord.text)
                    .join(RunRecord)
                    .where(RunRecord.job_id == job_id)
                    .order_by(RunLogRecord.id)
                )
            )

    def owner(self, job_id: int) -> subprocess.Popen[bytes]:
        """The worker that runs the job now."""
        with self.database.session() as s:
            statement = (
                "SELECT workers.name FROM runs JOIN workers ON workers.id = worker_id "
                "WHERE job_id = :job ORDER BY attempt DESC LIMIT 1"
            )
            name = s.scalars(text(statement), {"job": job_id}).one()
        return next(worker for worker in self.workers if f"-{worker.pid}-" in name)

    def until(self, condition: Callable[[], Any], seconds: float = 60) -> None:
        def logs() -> str:
            return "\n".join(path.read_text() for path in sorted(self.folder.glob("worker-*.log")))

        wait_until(condition, seconds, 0.05, logs)

    def until_held(self, job_id: int, attempt: int = 1) -> None:
        self.until(lambda: self.job(job_id).attempt == attempt and self.log(job_id).count("waiting") >= attempt)

    def children(self, worker: subprocess.Popen[bytes]) -> list[int]:
        """Its children, which it or its template started."""
        pids = [pid for pid in processes_with(str(self.home)) if pid != worker.pid]
        return [pid for pid in pids if worker.pid in (_parent(pid), _parent(_parent(pid)))]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with embedded.running(folder / "home", options=FAST_AND_FORGETFUL) as url:
        migrate.upgrade(url)
        fleet = Fleet(folder, url)
        fleet.start()
        yield fleet
        fleet.hold.unlink(missing_ok=True)
        for worker in fleet.workers:
            worker.kill()
            worker.wait()
        fleet.database.close()
    shutil.rmtree(embedded.data_folder(folder / "home"), ignore_errors=True)


def test_a_job_is_done_with_its_log_and_results(fleet: Fleet) -> None:
    job = fleet.submit("prompt")
    fleet.until(lambda: fleet.job(job).state == "done")
    assert fleet.results(job) == [(1, "ok")]
    assert "check prompt n=100,f32,fwd ok" in fleet.log(job)
    assert [run.state for run in fleet.runs(job)] == ["done"]
    with fleet.database.session() as s:
        assert s.scalars(text("SELECT facts->>'device' FROM workers")).one() == "cpu"
        assert s.scalars(text("SELECT catalogue->'operators'->0->>'name' FROM commits")).one() == "patient"


def test_a_job_that_cannot_run_fails_and_says_why(fleet: Fleet) -> None:
    job = fleet.submit("no_such_variant")
    fleet.until(lambda: fleet.job(job).state == "failed")
    assert fleet.job(job).message
    assert fleet.results(job) == []


def test_kernel_code_finds_no_way_to_the_database(fleet: Fleet) -> None:
    if levels.strongest_isolation(fleet.home) not in ("full", "user"):
        pytest.skip("this host allows no user namespace")
    job = fleet.submit("spy")
    fleet.until(lambda: fleet.job(job).state == "done")
    found = {line for line in fleet.log(job).splitlines() if line.startswith("spy:")}
    assert found == {"spy: environ False", "spy: postmaster.pid False", "spy: .s.PGSQL.5432 False"}


def test_the_library_of_a_waiting_job_is_built_before_the_job_begins(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.repository.commit("native", {"csrc/patient/patient.cpp": 'extern "C" int answer() { return 42; }'})
    sha = fleet.repository.head()
    with fleet.database.session() as s:
        row = registry.NewCommit(sha, None, 2, "A", datetime.now(UTC), "native")
        commit_id = registry.record_commits(s, fleet.repository_id, [row])[sha]
    fleet.hold.touch()
    running = fleet.submit("held")
    monkeypatch.setattr(fleet, "commit_id", commit_id)
    waiting = fleet.submit("prompt")
    fleet.until_held(running)
    fleet.until(lambda: list((fleet.home / "libraries").glob("*/record.json")))
    assert fleet.job(waiting).state == "queued"
    fleet.hold.unlink()
    fleet.until(lambda: fleet.job(waiting).state == "done")


def test_a_running_job_is_cancelled_within_two_seconds(fleet: Fleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    with fleet.database.session() as s:
        submissions.cancel_job(s, job)
    fleet.until(lambda: fleet.runs(job)[0].state == "cancelled", 10)
    run, cancelled_at = fleet.runs(job)[0], fleet.job(job).finished_at
    assert run.finished_at is not None
    assert cancelled_at is not None
    assert (run.finished_at - cancelled_at).total_seconds() < 2
    assert fleet.children(fleet.workers[0]) == []
    assert fleet.results(job) == []
    fleet.hold.unlink()


def test_a_running_job_makes_room_for_a_more_urgent_one_and_goes_on(fleet: Fleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held", "after")
    fleet.until_held(job)
    urgent = fleet.submit("prompt", priority=1)
    # The worker asks for urgent jobs while it waits for the child.
    time.sleep(2 * DatabaseCoordinator.poll_seconds)
    fleet.hold.unlink()
    fleet.until(lambda: fleet.job(job).state == "done")
    (yielded, ended), (hurried,) = fleet.runs(job), fleet.runs(urgent)
    assert (yielded.state, yielded.yielded_to_job_id, ended.state) == ("yielded", urgent, "done")
    assert yielded.finished_at is not None
    assert hurried.finished_at is not None
    assert yielded.finished_at <= hurried.started_at < hurried.finished_at <= ended.started_at
    assert fleet.results(job) == [(2, "ok"), (2, "ok")]
    assert "check held" not in fleet.log(job).split("kept from an interrupted run")[1], "nothing is measured twice"


def test_a_worker_paused_past_its_lease_writes_nothing(fleet: Fleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    paused = fleet.owner(job)
    fleet.start()
    paused.send_signal(signal.SIGSTOP)
    fleet.until_held(job, attempt=2)
    assert fleet.children(paused)
    paused.send_signal(signal.SIGCONT)
    fleet.until(lambda: "writes nothing" in (fleet.folder / "worker-0.log").read_text(), 15)
    assert fleet.children(paused) == []
    fleet.hold.unlink()
    fleet.until(lambda: fleet.job(job).state == "done")
    assert [run.state for run in fleet.runs(job)] == ["lost", "done"]
    assert fleet.results(job) == [(2, "ok")]


def test_a_job_outlives_an_outage_of_the_database(fleet: Fleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    embedded.stop(fleet.home)
    fleet.hold.unlink()
    time.sleep(float(LEASE) + 1)
    embedded.start(fleet.home, options=FAST_AND_FORGETFUL)
    fleet.until(lambda: fleet.job(job).state == "done")
    assert fleet.results(job) == [(1, "ok")]
    assert all(worker.poll() is None for worker in fleet.workers)


def test_another_worker_finishes_the_job_of_a_killed_one(fleet: Fleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    killed = fleet.owner(job)
    child = fleet.children(killed)
    assert child
    killed.kill()
    killed.wait()
    fleet.until(lambda: not set(child) & set(processes_with(str(fleet.home))), 10)
    fleet.until_held(job, attempt=2)
    assert fleet.owner(job) is not killed
    fleet.hold.unlink()
    fleet.until(lambda: fleet.job(job).state == "done")
    assert fleet.results(job) == [(2, "ok")]


def test_a_worker_that_is_stopped_hands_its_job_back(fleet: Fleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    worker = fleet.owner(job)
    worker.terminate()
    assert worker.wait(30) == 0
    assert fleet.job(job).state == "queued"
    assert [run.state for run in fleet.runs(job)] == ["lost"]
    assert fleet.runs(job)[0].message
    assert fleet.children(worker) == []
    assert list(fleet.home.glob(f"worktrees/*-{worker.pid}-*")) == []
    with fleet.database.session() as s:
        assert s.scalars(
            text("SELECT stopped_at IS NOT NULL FROM workers WHERE name LIKE :n"), {"n": f"%-{worker.pid}-%"}
        ).one()
    fleet.hold.unlink()


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[1])
    except OSError:
        return 0
