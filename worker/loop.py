"""The queue worker: executes one job after the other for one device, until it is told to stop."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from warpwatch import __version__
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.words import Reason
from warpwatch.db import embedded, queue, registry, runs
from warpwatch.db.database import Database
from warpwatch.db.errors import DatabaseDownError, DatabaseFullError, OutcomeError, StaleRunError
from warpwatch.db.reads.query import Session
from warpwatch.db.runs import ClaimedJob
from warpwatch.settings import Settings
from warpwatch.worker import groups, sandbox
from warpwatch.worker.checkout import Host, Tools
from warpwatch.worker.device_lock import lock_device, physical_id
from warpwatch.worker.execution import execute
from warpwatch.worker.guard import CANCELLED, LOST, STOPPING, LeaseGuard
from warpwatch.worker.log_writer import LogWriter
from warpwatch.worker.reporter import CannotRunError, Stopped, UnhealthyError

T = TypeVar("T")
Ending = Callable[[Session], None]
_RETRY_SECONDS = 1.0
_LAST_TRY_SECONDS = 10.0
"""How long a worker that was told to stop still tries to reach the database."""
_PR_SET_DUMPABLE = 4
_log = logging.getLogger(__name__)


def run_worker(settings: Settings, database_url: str, device: str) -> None:
    """Serves the queue of `device` until SIGTERM or SIGINT; then the running job goes back into the queue.

    Raises CannotRunError when the device cannot be used, EngineError when the database cannot, Stopped when told to
    stop before it had begun to serve.
    """
    _keep_secrets()
    stop_requested = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop_requested.set())
    # One thread measures for the whole life of the worker: the kernel ends a child when the thread that started it
    # ends.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="measuring") as bench:
        worker = bench.submit(_Worker, settings, database_url, device, stop_requested).result()
        try:
            asyncio.run(_serve(worker, stop_requested, bench))
        finally:
            bench.submit(worker.close).result()


async def _serve(worker: _Worker, stop_requested: threading.Event, bench: ThreadPoolExecutor) -> None:
    stop = asyncio.Event()

    async def forward() -> None:
        while not stop_requested.is_set():
            await asyncio.sleep(0.1)
        _log.info("stopping; a running job goes back into the queue")
        worker.guard.stop()
        stop.set()

    forwarding = asyncio.create_task(forward())
    _log.info("serving %s as %s", worker.device_key, worker.name)
    await queue.run_worker(
        worker.database, worker.device_key, lambda job_id: bench.submit(worker.handle, job_id).result(), stop
    )
    await forwarding


def _keep_secrets() -> None:
    """Makes this process unreadable: without a user namespace kernel code could read the database's address from
    /proc."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


class _Worker:
    """One device, one thread. Registered in the database until `close`."""

    def __init__(self, settings: Settings, database_url: str, device: str, stop_requested: threading.Event) -> None:
        physical = physical_id(device)
        self._device_lock = lock_device(device, physical)
        hidden = (*embedded.folders(settings.home), *sandbox.SOCKET_FOLDERS)
        host = Host(settings, device, hidden, group=groups.claim(groups.find_own_group()))
        self.name = f"{socket.gethostname()}-{os.getpid()}-{device.replace(':', '')}"
        self._tools = Tools(host)
        environment, peaks = self._tools.identify(_StartReporter(stop_requested))
        self.device_key = environment.device_key
        # Of a hundred workers each has one connection, and a second one for as long as two of its threads need one.
        self.database = Database(database_url, pool_size=1, max_overflow=3)
        confinement = host.confinement()
        facts = {
            "device": device,
            "isolation": confinement.isolation,
            "missing_protections": sandbox.missing_protections(confinement),
            "physical": physical,
        }
        with self.database.session() as s:
            registry.ensure_environment(s, environment, peaks)
            device_id = registry.ensure_device(
                s, environment.device_key, environment.device_kind, environment.device_name
            )
            worker_id = registry.register_worker(s, self.name, device_id, __version__, facts)
        self._id = worker_id
        self.guard = LeaseGuard(self.database, worker_id, settings.lease_seconds)
        self.guard.start()

    def close(self) -> None:
        self._tools.close()
        self.guard.close()
        self.database.close()
        if self._device_lock is not None:
            self._device_lock.close()

    def handle(self, job_id: int) -> None:
        """Executes one job, if it is still queued, and writes how it ended."""
        job = self._write(lambda s: runs.begin_run(s, job_id, self._id))
        if job is None:
            _log.info("job %d is no longer queued", job_id)
            return
        request = job.request
        _log.info(
            "job %d: %s %s at %s, attempt %d", job_id, request.kind, request.operator, request.sha[:12], job.attempt
        )
        traces = sandbox.make_temp()
        try:
            with self.guard.watching(job.run_id):
                self._end(job, self._run(job, traces))
        finally:
            shutil.rmtree(traces, ignore_errors=True)

    def _run(self, job: ClaimedJob, traces: Path) -> Ending | None:
        """Executes the job; returns the function that writes how it ended, None when nothing may be written."""
        reporter = _RunReporter(self.database, job.run_id, self.guard)
        try:
            outcome = execute(job.request, self._tools, reporter, traces)
        except Stopped as stopped:
            return _ending_of_stopped(job.run_id, stopped.reason)
        except UnhealthyError as error:
            reporter.log(str(error))
            unfit = error
            return lambda s: self._give_back(s, job.run_id, unfit)
        except CannotRunError as error:
            reporter.log(str(error))
            return _failure(job.run_id, str(error), retry=error.retry, reason=error.reason)
        except Exception as error:  # noqa: BLE001 - an internal error must not end the worker or leave its job running
            _log.exception("job %d failed because of an internal error", job.job_id)
            return _failure(job.run_id, f"internal error: {type(error).__name__}: {error}", retry=True)
        finally:
            reporter.close()
        return lambda s: self._finish(s, job, outcome)

    def _give_back(self, s: Session, run_id: int, unfit: UnhealthyError) -> None:
        """Queues the job again, and marks the device until a measurement on it succeeds."""
        registry.set_trouble(s, self._id, str(unfit))
        runs.fail_run(s, run_id, str(unfit), retry=unfit.retry, reason=unfit.reason)

    def _finish(self, s: Session, job: ClaimedJob, outcome: Outcome) -> None:
        if job.request.kind in ("bench", "compare"):
            registry.set_trouble(s, self._id, "")
        runs.finish_run(s, job.run_id, outcome)

    def _end(self, job: ClaimedJob, ending: Ending | None) -> None:
        if ending is None:
            _log.warning("job %d belongs to another worker now; this run writes nothing", job.job_id)
            return
        try:
            self._write(ending)
        except OutcomeError as error:
            self._write(_failure(job.run_id, str(error), retry=False))
        except StaleRunError:
            _log.warning("job %d was cancelled or given to another worker; this run wrote nothing", job.job_id)
            self._write(lambda s: runs.cancelled_run(s, job.run_id))
        else:
            _log.info("job %d ended", job.job_id)

    def _write(self, action: Callable[[Session], T]) -> T:
        """Runs `action` in one transaction; waits while the database cannot be reached, so no result is lost."""
        last_try = None
        while True:
            try:
                with self.database.session() as s:
                    return action(s)
            except (DatabaseDownError, DatabaseFullError) as error:
                if self.guard.stopping and last_try is None:
                    last_try = time.monotonic() + _LAST_TRY_SECONDS
                if last_try is not None and time.monotonic() > last_try:
                    raise
                _log.warning("%s; trying again", error)
                time.sleep(_RETRY_SECONDS)


def _ending_of_stopped(run_id: int, reason: str) -> Ending | None:
    endings: dict[str, Ending | None] = {
        CANCELLED: lambda s: runs.cancelled_run(s, run_id),
        STOPPING: lambda s: runs.release_run(s, run_id),
        LOST: None,
    }
    return endings[reason]


def _failure(run_id: int, message: str, *, retry: bool, reason: Reason | None = None) -> Ending:
    return lambda s: runs.fail_run(s, run_id, message, retry=retry, reason=reason)


class _RunReporter:
    """A job's reporter: writes log and progress to the database, and asks the guard whether to stop."""

    def __init__(self, database: Database, run_id: int, guard: LeaseGuard) -> None:
        self._writer = LogWriter(database, run_id)
        self._guard = guard
        self.log = self._writer.log
        self.progress = self._writer.progress
        self.close = self._writer.close

    def should_stop(self) -> str | None:
        return self._guard.reason()


class _StartReporter:
    """Reports while the worker identifies its device, when there is no run to log for."""

    def __init__(self, stop_requested: threading.Event) -> None:
        self._stop_requested = stop_requested

    def log(self, text: str) -> None:
        _log.info("%s", text)

    def progress(self, done: int, total: int, text: str) -> None:
        """Progress of the start is not shown."""

    def should_stop(self) -> str | None:
        return STOPPING if self._stop_requested.is_set() else None
