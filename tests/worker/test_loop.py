"""Workers as processes against a server as a process: whatever the network, the server, the database and the workers
do meanwhile, every job is done once."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from sqlalchemy import select, text
from typer.testing import CliRunner

from tests.builders import count
from tests.conftest import FAST_AND_FORGETFUL
from tests.waiting import wait_until
from tests.worker.conftest import Repository, identify, processes_with
from warpwatch.cli.app import app
from warpwatch.contract.catalogue import CommitInfo
from warpwatch.contract.claims import TRACE_PARENT
from warpwatch.contract.data_folder import undelivered_folder, worker_key_file
from warpwatch.contract.spec import JobSpec
from warpwatch.db import embedded, migrate, registry, submissions
from warpwatch.db.database import Database
from warpwatch.db.models import JobRecord, ResultRecord, RunLogRecord, RunRecord
from warpwatch.db.worker_keys import add_key, revoke_key
from warpwatch.worker import levels
from warpwatch.worker.http_coordinator import HttpCoordinator

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


@operator.variant("spy", idea="looks for the database and for keys")
def spy(x):
    for path in ("/proc/%d/environ" % os.getppid(), "{data}/postmaster.pid", "{data}/.s.PGSQL.5432", "{key}"):
        try:
            found = len(open(path, "rb").read(10)) > 0
        except OSError:
            found = os.path.exists(path) and "SQL" in path
        print("spy:", os.path.basename(path), found, flush=True)
    print("spy: undelivered", os.path.exists("{undelivered}/1.json"), flush=True)
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


class Wire:
    """Passes bytes on between workers and the server, as a network does.

    With `cuts_results` it breaks in the middle of the next request that ends a run.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.cuts_results = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(("127.0.0.1", self._port))
        except OSError:
            near.close()
            return
        threading.Thread(target=self._pass_on, args=(far, near, False), daemon=True).start()
        self._pass_on(near, far, True)

    def _pass_on(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if to_server and self.cuts_results and b"/end HTTP" in data[:200]:
                    self.cuts_results = False
                    target.sendall(data[: len(data) // 2])
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Collector:
    """An OTLP collector; spans by trace and name, as (id, parent, attributes)."""

    def __init__(self) -> None:
        self.spans: dict[tuple[str, str], tuple[str, str, dict[str, Any]]] = {}
        self.services: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            names = {item.key: item.value.string_value for item in resource.resource.attributes}
            self.services.add(names["service.name"])
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                facts = {item.key: item.value for item in span.attributes}
                key = span.trace_id.hex(), span.name
                self.spans[key] = span.span_id.hex(), span.parent_span_id.hex(), facts

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Fleet:
    """A server on a database with one repository, and the workers that have a key of it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.home = folder / "home"
        # Kernel code sees no folder of the host but those of its programs.
        self.shown = folder / "shown"
        self.shown.mkdir()
        self.hold = self.shown / "hold"
        self.database = Database(url)
        self.workers: list[subprocess.Popen[bytes]] = []
        environment = identify(self.home)
        self.repository = Repository(folder / "repository")
        self.repository.commit(
            "good",
            {
                "kernels/patient.py": OPERATOR.format(
                    hold=self.hold,
                    data=embedded.data_folder(self.home),
                    key=worker_key_file(self.home),
                    undelivered=undelivered_folder(self.home),
                )
            },
        )
        sha = self.repository.head()
        with self.database.session() as s:
            self.repository_id = registry.ensure_repository(s, "patient", self.repository.url)
            row = CommitInfo(sha, None, 1, "A", datetime.now(UTC), "good")
            self.commit_id = registry.record_commits(s, self.repository_id, [row])[sha]
            self.operator_id = registry.ensure_operators(s, self.repository_id, ["patient"])["patient"]
            self.device_id = registry.ensure_device(s, environment.device_key, "cpu", environment.device_name)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.wire, self.collector = Wire(self.port), Collector()
        self.key = self.new_key("cluster")
        worker_key_file(self.home).write_text(self.key)
        self.start_server()

    def new_key(self, name: str) -> str:
        with self.database.session() as s:
            return add_key(s, name)

    def start_server(self) -> None:
        values = {"WARPWATCH_HOME": str(self.folder / "server"), "WARPWATCH_DATABASE_URL": self.url}
        values |= {"WARPWATCH_LEASE": LEASE, "WARPWATCH_PORT": str(self.port)}
        log = (self.folder / "worker-server.log").open("ab")
        command = [sys.executable, "-m", "warpwatch", "serve"]
        self.server = subprocess.Popen(command, env=os.environ | values, stdout=log, stderr=log, cwd=self.folder)
        # A busy host takes long to import the server.
        self.until(self._answers, 180)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/health", timeout=5).close()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def stop_server(self) -> None:
        self.server.terminate()
        self.server.wait(30)

    def start(self, *options: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if name != "WARPWATCH_DATABASE_URL"}
        environment |= {"WARPWATCH_HOME": str(self.home), "WARPWATCH_WORKER_KEY": self.key}
        environment |= {"PYTHONPATH": str(self.shown)} | variables
        log = (self.folder / f"worker-{len(self.workers)}.log").open("wb")
        address = f"http://127.0.0.1:{self.wire.port}"
        command = [sys.executable, "-m", "warpwatch", "worker", "--device", "cpu", "--server", address, *options]
        worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.folder)
        self.workers.append(worker)
        return worker

    def submit(self, *variants: str, priority: int = 0, step_seconds: int | None = None) -> int:
        """step_seconds: of a sealed job, None for any other."""
        spec = JobSpec(variants=list(variants), sealed=step_seconds is not None, step_seconds=step_seconds)
        job = submissions.NewJob("check", self.commit_id, self.operator_id, self.device_id, spec)
        new = submissions.NewSubmission(self.repository_id, {}, [job], priority=priority)
        with self.database.session() as s:
            submission = submissions.create_submission(s, new)
            return s.scalars(select(JobRecord.id).where(JobRecord.submission_id == submission)).one()

    def start_before_server(self) -> None:
        """Starts a worker, which finds no server, and then the server."""
        self.start()
        log = self.folder / f"worker-{len(self.workers) - 1}.log"
        self.until(lambda: "trying again" in log.read_text(), 180)
        self.start_server()

    def profile(self) -> int:
        """A job that brings a trace."""
        spec = JobSpec(variants=["prompt"])
        job = submissions.NewJob("profile", self.commit_id, self.operator_id, self.device_id, spec)
        with self.database.session() as s:
            submission = submissions.create_submission(s, submissions.NewSubmission(self.repository_id, {}, [job]))
            return s.scalars(text("SELECT id FROM jobs WHERE submission_id = :id"), {"id": submission}).one()

    def job(self, job_id: int) -> JobRecord:
        with self.database.session() as s:
            return s.get_one(JobRecord, job_id)

    def is_due(self, job_id: int) -> bool:
        """Whether a worker that asks now may get the job."""
        due = "SELECT count(*) FROM jobs WHERE id = :id AND state = 'queued' AND coalesce(not_before, now()) <= now()"
        with self.database.session() as s:
            return s.scalar(text(due), {"id": job_id}) == 1

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
    folder = tmp_path_factory.mktemp("remote")
    with embedded.running(folder / "home", options=FAST_AND_FORGETFUL) as url:
        migrate.upgrade(url)
        fleet = Fleet(folder, url)
        sending = {"OTEL_EXPORTER_OTLP_ENDPOINT": fleet.collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        fleet.start(WARPWATCH_TELEMETRY="on", **sending)
        yield fleet
        fleet.hold.unlink(missing_ok=True)
        for process in [*fleet.workers, fleet.server]:
            process.kill()
            process.wait()
        fleet.wire.close()
        fleet.collector.close()
        fleet.database.close()
    shutil.rmtree(embedded.data_folder(folder / "home"), ignore_errors=True)


def test_a_job_is_done_with_its_log_results_and_trace(fleet: Fleet) -> None:
    trace, request = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    token = TRACE_PARENT.set(f"00-{trace}-{request}-01")
    job = fleet.submit("prompt")
    TRACE_PARENT.reset(token)
    fleet.until(lambda: fleet.job(job).state == "done")
    assert fleet.results(job) == [(1, "ok")]
    assert "check prompt n=100,f32,fwd ok" in fleet.log(job)
    (run,) = fleet.runs(job)
    assert run.times is not None
    assert run.times["record"] > 0
    fleet.until(lambda: (trace, "check patient") in fleet.collector.spans)
    assert fleet.collector.services == {"warpwatch-worker"}
    span, parent, facts = fleet.collector.spans[trace, "check patient"]
    assert parent == request
    assert facts["warpwatch.ending"].string_value == "done"
    assert facts["warpwatch.seconds.verify"].double_value >= 0
    for step in ("checkout", "record"):
        assert fleet.collector.spans[trace, step][1] == span, step


def test_a_job_that_cannot_run_fails_and_says_why(fleet: Fleet) -> None:
    job = fleet.submit("no_such_variant")
    fleet.until(lambda: fleet.job(job).state == "failed")
    assert fleet.job(job).message
    assert fleet.results(job) == []


def test_kernel_code_finds_no_way_to_the_database_and_no_key(fleet: Fleet) -> None:
    if levels.strongest_isolation(fleet.home) not in ("full", "user"):
        pytest.skip("this host allows no user namespace")
    fleet.until(undelivered_folder(fleet.home).exists)
    kept = undelivered_folder(fleet.home) / "1.json"
    kept.write_text("{}")
    job = fleet.submit("spy")
    fleet.until(lambda: fleet.job(job).state == "done")
    found = {line for line in fleet.log(job).splitlines() if line.startswith("spy:")}
    names = ("environ", "postmaster.pid", ".s.PGSQL.5432", "worker.key", "undelivered")
    assert found == {f"spy: {name} False" for name in names}
    kept.unlink()


def test_the_library_of_a_waiting_job_is_built_before_the_job_begins(fleet: Fleet) -> None:
    fleet.repository.commit("native", {"csrc/patient/patient.cpp": 'extern "C" int answer() { return 42; }'})
    sha = fleet.repository.head()
    with fleet.database.session() as s:
        row = CommitInfo(sha, None, 2, "A", datetime.now(UTC), "native")
        commit_id = registry.record_commits(s, fleet.repository_id, [row])[sha]
    fleet.hold.touch()
    # In one submission: a worker looks once, when a job begins, what waits behind it.
    measured = ((fleet.commit_id, "held"), (commit_id, "prompt"))
    jobs = [
        submissions.NewJob("check", commit, fleet.operator_id, fleet.device_id, JobSpec(variants=[variant]))
        for commit, variant in measured
    ]
    with fleet.database.session() as s:
        new = submissions.NewSubmission(fleet.repository_id, {}, jobs)
        submission = submissions.create_submission(s, new)
        ids = select(JobRecord.id).where(JobRecord.submission_id == submission).order_by(JobRecord.id)
        running, waiting = s.scalars(ids)
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
    time.sleep(2 * HttpCoordinator.poll_seconds)
    fleet.hold.unlink()
    fleet.until(lambda: fleet.job(job).state == "done")
    (yielded, ended), (hurried,) = fleet.runs(job), fleet.runs(urgent)
    assert (yielded.state, yielded.yielded_to_job_id, ended.state) == ("yielded", urgent, "done")
    assert yielded.finished_at is not None
    assert hurried.finished_at is not None
    assert yielded.finished_at <= hurried.started_at < hurried.finished_at <= ended.started_at
    assert fleet.results(job) == [(2, "ok"), (2, "ok")]
    assert "check held" not in fleet.log(job).split("kept from an interrupted run")[1], "nothing is measured twice"


def test_a_sealed_job_takes_whole_steps_whatever_happens_meanwhile(fleet: Fleet) -> None:
    step = 2
    fleet.hold.touch()
    cancelled = fleet.submit("held", step_seconds=step)
    fleet.until_held(cancelled)
    with fleet.database.session() as s:
        submissions.cancel_job(s, cancelled)
    fleet.until(lambda: fleet.runs(cancelled)[0].state == "cancelled")
    job = fleet.submit("held", "after", step_seconds=step)
    fleet.until_held(job)
    urgent = fleet.submit("prompt", priority=1)
    time.sleep(2 * HttpCoordinator.poll_seconds)
    fleet.hold.unlink()
    fleet.until(lambda: fleet.job(urgent).state == "done")
    (sealed,), (hurried,) = fleet.runs(job), fleet.runs(urgent)
    assert sealed.state == "done", "it made room for nothing"
    for run, after in ((fleet.runs(cancelled)[0], sealed), (sealed, hurried)):
        assert run.finished_at is not None
        assert run.finished_at <= after.started_at, "nobody sees earlier that the device is free"
        # The worker hears of its job a moment after it has begun, and counts from there.
        assert (run.finished_at - run.started_at).total_seconds() >= step


def test_results_outlive_a_connection_that_breaks(fleet: Fleet) -> None:
    job = fleet.profile()
    fleet.wire.cuts_results = True
    fleet.until(lambda: fleet.job(job).state == "done")
    assert not fleet.wire.cuts_results, "no request was cut"
    assert fleet.results(job) == [(1, "ok")]
    with fleet.database.session() as s:
        size, stored = s.execute(
            text("SELECT compressed_size, (SELECT sum(octet_length(data)) FROM trace_chunks) FROM traces")
        ).one()
        assert size == stored > 0
    # The server drops the pieces once the job has ended, in a transaction of its own.
    fleet.until(lambda: count(fleet.database, "result_chunks") == 0)


@pytest.mark.nightly
def test_a_job_outlives_a_server_that_restarts(fleet: Fleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    fleet.stop_server()
    fleet.hold.unlink()
    # Nobody reaps while no server runs.
    time.sleep(float(LEASE) + 1)
    fleet.start_server()
    fleet.until(lambda: fleet.job(job).state == "done")
    assert fleet.results(job) == [(1, "ok")]
    following = fleet.submit("prompt")
    fleet.until(lambda: fleet.job(following).state == "done")
    assert [worker.poll() for worker in fleet.workers] == [None]


def test_what_a_killed_worker_found_while_its_server_was_away_is_delivered(fleet: Fleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    owner = fleet.owner(job)
    fleet.stop_server()
    fleet.hold.unlink()
    run = fleet.runs(job)[0].id
    fleet.until((undelivered_folder(fleet.home) / f"{run}.json").exists)
    owner.kill()
    owner.wait()
    fleet.start_before_server()
    fleet.until(lambda: fleet.job(job).state == "done")
    assert fleet.results(job) == [(1, "ok")], "nothing is measured twice"
    assert "check held n=100,f32,fwd ok" in fleet.log(job)
    fleet.until(lambda: not list(undelivered_folder(fleet.home).iterdir()))


@pytest.mark.nightly
def test_what_a_stopped_worker_found_while_its_server_was_away_is_kept(fleet: Fleet) -> None:
    """Its job goes on where it was, once the next worker has delivered what it found."""
    fleet.hold.touch()
    job = fleet.submit("prompt", "held")
    fleet.until_held(job)
    owner = fleet.owner(job)
    fleet.stop_server()
    owner.terminate()
    assert owner.wait(60) == 0
    fleet.start_before_server()
    fleet.hold.unlink()
    fleet.until(lambda: fleet.job(job).state == "done")
    assert [run.state for run in fleet.runs(job)] == ["lost", "done"]
    assert fleet.job(job).max_attempts == 4, "the interruption is no attempt"
    assert "1 of 2 results are kept from an interrupted run" in fleet.log(job)


def test_a_job_outlives_an_outage_of_the_database(fleet: Fleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    embedded.stop(fleet.folder / "home")
    fleet.hold.unlink()
    time.sleep(float(LEASE) + 1)
    embedded.start(fleet.folder / "home", options=FAST_AND_FORGETFUL)
    fleet.until(lambda: fleet.job(job).state == "done")
    assert fleet.results(job) == [(1, "ok")]


def test_a_worker_paused_past_its_lease_writes_nothing(fleet: Fleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    paused = fleet.owner(job)
    paused.send_signal(signal.SIGSTOP)
    fleet.start()
    fleet.until_held(job, attempt=2)
    paused.send_signal(signal.SIGCONT)
    fleet.until(lambda: fleet.children(paused) == [], 15)
    fleet.hold.unlink()
    fleet.until(lambda: fleet.job(job).state == "done")
    assert [run.state for run in fleet.runs(job)] == ["lost", "done"]
    assert fleet.results(job) == [(2, "ok")]


def test_another_worker_finishes_the_job_of_a_killed_one(fleet: Fleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    killed = fleet.owner(job)
    killed.kill()
    killed.wait()
    fleet.until_held(job, attempt=2)
    fleet.hold.unlink()
    fleet.until(lambda: fleet.job(job).state == "done")
    assert fleet.results(job) == [(2, "ok")]


def test_a_job_goes_on_whatever_ends_its_worker(fleet: Fleet) -> None:
    """The first worker is stopped, the key of the second is revoked, the time of the third is over, and the fourth ends
    when no job is left."""
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    stopped = fleet.owner(job)
    fleet.start()
    stopped.terminate()
    assert stopped.wait(30) == 0
    fleet.until_held(job, attempt=2)
    assert fleet.job(job).max_attempts == 4, "the interruption is no attempt"
    refused = fleet.owner(job)
    with fleet.database.session() as s:
        revoke_key(s, "cluster")
    assert refused.wait(30) == 2
    fleet.key = fleet.new_key("second")
    # A job whose worker fell silent waits for a while.
    fleet.until(lambda: fleet.is_due(job))
    limited = fleet.start("--until-idle", "1s", "--at-most", "15")
    fleet.until_held(job, attempt=3)
    assert limited.wait(60) == 0, "its time is over while the job runs"
    assert [run.state for run in fleet.runs(job)] == ["lost"] * 3
    fleet.hold.unlink()
    brief = fleet.start("--until-idle", "1")
    assert brief.wait(60) == 0, "it ends after the job"
    assert fleet.results(job) == [(4, "ok")]


def test_a_time_that_is_none_is_refused() -> None:
    wrong = CliRunner().invoke(app, ["worker", "--until-idle", "soon"])
    assert (wrong.exit_code, "--until-idle" in wrong.output) == (2, True)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[1])
    except OSError:
        return 0
