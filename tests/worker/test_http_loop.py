"""Workers as processes without the database's address, against a server as a process: what the network, the server and
the worker itself may do meanwhile, every job is done once."""

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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.builders import count
from tests.conftest import FAST_AND_FORGETFUL
from tests.worker.test_loop import LEASE, Fleet
from warpwatch.contract.spec import JobSpec
from warpwatch.db import embedded, migrate, submissions
from warpwatch.db.worker_keys import add_key, revoke_key


class Wire:
    """Passes bytes on between workers and the server, as a network does.

    With `cuts_results` it breaks in the middle of the next piece of a results file.
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
        in_piece = False
        with suppress(OSError):
            while data := source.recv(65536):
                if in_piece:
                    target.sendall(data[: len(data) // 2])
                    break
                target.sendall(data)
                if to_server and self.cuts_results and data.startswith(b"PUT "):
                    in_piece, self.cuts_results = True, False
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class RemoteFleet(Fleet):
    """The same repository and jobs; workers have a key and the address of a server."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.wire = Wire(self.port)
        self.key = self.new_key("cluster")
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
        self.until(self._answers)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/health", timeout=5).close()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def stop_server(self) -> None:
        self.server.terminate()
        self.server.wait(30)

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if name != "WARPWATCH_DATABASE_URL"}
        environment |= {"WARPWATCH_HOME": str(self.home), "WARPWATCH_WORKER_KEY": self.key}
        log = (self.folder / f"worker-{len(self.workers)}.log").open("wb")
        address = f"http://127.0.0.1:{self.wire.port}"
        command = [sys.executable, "-m", "warpwatch", "worker", "--device", "cpu", "--server", address, *options]
        worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.folder)
        self.workers.append(worker)
        return worker

    def profile(self) -> int:
        """A job that brings a trace."""
        spec = JobSpec(variants=["prompt"])
        job = submissions.NewJob("profile", self.commit_id, self.operator_id, self.device_id, spec)
        with self.database.session() as s:
            submission = submissions.create_submission(s, submissions.NewSubmission(self.repository_id, {}, [job]))
            return s.scalars(text("SELECT id FROM jobs WHERE submission_id = :id"), {"id": submission}).one()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteFleet]:
    folder = tmp_path_factory.mktemp("remote")
    with embedded.running(folder / "database", options=FAST_AND_FORGETFUL) as url:
        migrate.upgrade(url)
        fleet = RemoteFleet(folder, url)
        fleet.start()
        yield fleet
        fleet.hold.unlink(missing_ok=True)
        for process in [*fleet.workers, fleet.server]:
            process.kill()
            process.wait()
        fleet.wire.close()
        fleet.database.close()
    shutil.rmtree(embedded.data_folder(folder / "database"), ignore_errors=True)


def test_a_job_is_done_with_its_log_and_results(fleet: RemoteFleet) -> None:
    job = fleet.submit("prompt")
    fleet.until(lambda: fleet.job(job).state == "done")
    assert fleet.results(job) == [(1, "ok")]
    assert "check prompt n=100,f32,fwd ok" in fleet.log(job)
    (run,) = fleet.runs(job)
    assert run.times is not None
    assert run.times["record"] > 0


def test_a_connection_that_breaks_in_the_middle_of_a_trace_costs_a_piece_of_it(fleet: RemoteFleet) -> None:
    job = fleet.profile()
    fleet.wire.cuts_results = True
    fleet.until(lambda: fleet.job(job).state == "done")
    assert not fleet.wire.cuts_results, "no piece was cut"
    assert fleet.results(job) == [(1, "ok")]
    with fleet.database.session() as s:
        size, stored = s.execute(
            text("SELECT compressed_size, (SELECT sum(octet_length(data)) FROM trace_chunks) FROM traces")
        ).one()
        assert size == stored > 0
    # The server drops the pieces once the job has ended, in a transaction of its own.
    fleet.until(lambda: count(fleet.database, "result_chunks") == 0)


def test_a_job_outlives_a_server_that_restarts(fleet: RemoteFleet) -> None:
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


def test_a_job_outlives_an_outage_of_the_database(fleet: RemoteFleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    embedded.stop(fleet.folder / "database")
    fleet.hold.unlink()
    time.sleep(float(LEASE) + 1)
    embedded.start(fleet.folder / "database", options=FAST_AND_FORGETFUL)
    fleet.until(lambda: fleet.job(job).state == "done")
    assert fleet.results(job) == [(1, "ok")]


def test_a_worker_paused_past_its_lease_writes_nothing(fleet: RemoteFleet) -> None:
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


def test_another_worker_finishes_the_job_of_a_killed_one(fleet: RemoteFleet) -> None:
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


def test_a_stopped_worker_hands_its_job_back_and_the_next_one_takes_it(fleet: RemoteFleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    stopped = fleet.owner(job)
    fleet.start()
    stopped.terminate()
    assert stopped.wait(30) == 0
    fleet.until_held(job, attempt=2)
    fleet.hold.unlink()
    fleet.until(lambda: fleet.job(job).state == "done")
    first, second = fleet.runs(job)
    assert (first.state, second.state) == ("lost", "done")
    assert fleet.job(job).max_attempts == 4, "the interruption is no attempt"


def test_a_worker_ends_by_itself_when_no_job_comes_and_after_its_time(fleet: RemoteFleet) -> None:
    for worker in fleet.workers:
        worker.terminate()
        worker.wait(30)
    fleet.hold.touch()
    job = fleet.submit("held")
    limited = fleet.start("--until-idle", "1s", "--at-most", "15")
    fleet.until_held(job)
    assert limited.wait(60) == 0, "its time is over while the job runs"
    assert [run.state for run in fleet.runs(job)] == ["lost"]
    fleet.hold.unlink()
    brief = fleet.start("--until-idle", "1")
    assert brief.wait(60) == 0, "it ends after the job"
    assert fleet.results(job) == [(2, "ok")]
    wrong = fleet.start("--until-idle", "soon")
    assert wrong.wait(30) == 2
    fleet.start()


def test_the_worker_of_a_revoked_key_ends_and_its_job_goes_on_elsewhere(fleet: RemoteFleet) -> None:
    fleet.hold.touch()
    job = fleet.submit("held")
    fleet.until_held(job)
    refused = fleet.owner(job)
    with fleet.database.session() as s:
        revoke_key(s, "cluster")
    assert refused.wait(30) == 2
    fleet.key = fleet.new_key("second")
    fleet.start()
    fleet.until_held(job, attempt=2)
    fleet.hold.unlink()
    fleet.until(lambda: fleet.job(job).state == "done")
    assert fleet.results(job) == [(2, "ok")]
