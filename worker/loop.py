"""The queue worker: takes one job after the other for one device, until it is told to stop."""

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
from warpwatch.contract.outcome import Order
from warpwatch.contract.words import Reason
from warpwatch.db import embedded, queue, registry, runs
from warpwatch.db.database import Database
from warpwatch.db.errors import DatabaseDownError, DatabaseFullError, OutcomeError, StaleRunError
from warpwatch.db.outcome import RunOutcome
from warpwatch.db.reads.query import Session
from warpwatch.db.runs import JobOrder
from warpwatch.settings import Settings
from warpwatch.worker import sandbox
from warpwatch.worker.checkout import Host, Tools
from warpwatch.worker.execution import execute
from warpwatch.worker.guard import CANCELLED, LOST, STOPPING, LeaseGuard
from warpwatch.worker.log_writer import LogWriter
from warpwatch.worker.record import environment_row, run_outcome
from warpwatch.worker.reporter import CannotRunError, Stopped, UnhealthyError

T = TypeVar("T")
Ending = Callable[[Session], None]
_RETRY_SECONDS = 1.0
_LAST_TRY_SECONDS = 10.0
"""How long a worker that was told to stop still tries to reach a database that is away."""
_PR_SET_DUMPABLE = 4
_log = logging.getLogger(__name__)


def run_worker(settings: Settings, database_url: str, device: str) -> None:
    """Serves the queue of `device` until SIGTERM or SIGINT; then the running job goes back into the queue.

    Raises CannotRunError when the device cannot be used, EngineError when the database cannot, Stopped when told to
    stop before it had begun to serve.
    """
    _keep_secrets()
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    # One thread measures for the whole life of the worker: the kernel ends a child when the thread that started it
    # ends.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="measuring") as bench:
        worker = bench.submit(_Worker, settings, database_url, device, asked).result()
        try:
            asyncio.run(_serve(worker, database_url, asked, bench))
        finally:
            bench.submit(worker.close).result()


async def _serve(worker: _Worker, database_url: str, asked: threading.Event, bench: ThreadPoolExecutor) -> None:
    stop = asyncio.Event()

    async def forward() -> None:
        while not asked.is_set():
            await asyncio.sleep(0.1)
        _log.info("stopping; a running job goes back into the queue")
        worker.guard.stop()
        stop.set()

    forwarding = asyncio.create_task(forward())
    _log.info("serving %s as %s", worker.device_key, worker.name)
    await queue.run_worker(
        database_url, worker.device_key, lambda job_id: bench.submit(worker.handle, job_id).result(), stop
    )
    await forwarding


def _keep_secrets() -> None:
    """Where kernel code has no user namespace of its own, it could else read the database's address from /proc."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


class _Worker:
    """One device, one thread. Known to the database from its making to `close`."""

    def __init__(self, settings: Settings, database_url: str, device: str, asked: threading.Event) -> None:
        host = Host(settings, device, (*embedded.folders(settings.home), *sandbox.SOCKET_FOLDERS))
        self.name = f"{socket.gethostname()}-{os.getpid()}-{device.replace(':', '')}"
        self._tools = Tools(host)
        environment, peaks = self._tools.identify(_StartReporter(asked))
        self.device_key = environment.device_key
        self._database = Database(database_url, pool_size=2)
        facts = {"device": device, "isolation": host.confinement().isolation}
        with self._database.session() as s:
            registry.ensure_environment(s, environment_row(environment, peaks))
            device_id = registry.ensure_device(
                s, environment.device_key, environment.device_kind, environment.device_name
            )
            worker_id = registry.register_worker(s, self.name, device_id, __version__, facts)
        self._id = worker_id
        self.guard = LeaseGuard(database_url, worker_id, settings.lease_seconds)
        self.guard.start()

    def close(self) -> None:
        self._tools.close()
        self.guard.close()
        self._database.close()

    def handle(self, job_id: int) -> None:
        """Runs one job, if it is still waiting, and writes how it ended."""
        order = self._written(lambda s: runs.begin_run(s, job_id, self._id))
        if order is None:
            _log.info("job %d is not waiting any more", job_id)
            return
        _log.info(
            "job %d: %s %s at %s, attempt %d", job_id, order.kind, order.operator, order.commit_sha[:12], order.attempt
        )
        traces = sandbox.make_temp()
        try:
            with self.guard.watching(order.run_id):
                self._end(order, self._run(order, traces))
        finally:
            shutil.rmtree(traces, ignore_errors=True)

    def _run(self, order: JobOrder, traces: Path) -> Ending | None:
        """Does the job; returns what is to be written about it, None when nothing may be."""
        reporter = _RunReporter(self._database, order.run_id, self.guard)
        wanted = Order(order.kind, order.repository_url, order.commit_sha, order.operator, order.spec, order.base_sha)
        try:
            rows = run_outcome(execute(wanted, self._tools, reporter, traces))
        except Stopped as stopped:
            return _ending_of_stopped(order.run_id, stopped.reason)
        except UnhealthyError as error:
            reporter.log(str(error))
            unfit = error
            return lambda s: self._give_back(s, order.run_id, unfit)
        except CannotRunError as error:
            reporter.log(str(error))
            return _failure(order.run_id, str(error), retry=error.retry, reason=error.reason)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the worker, nor leave its job without an end
            _log.exception("job %d stumbled over a fault of Warpwatch itself", order.job_id)
            return _failure(order.run_id, f"internal error: {type(error).__name__}: {error}", retry=True)
        finally:
            reporter.close()
        return lambda s: self._finish(s, order, rows)

    def _give_back(self, s: Session, run_id: int, unfit: UnhealthyError) -> None:
        """The job waits again, and the device is marked until a measurement on it succeeds."""
        registry.set_trouble(s, self._id, str(unfit))
        runs.fail_run(s, run_id, str(unfit), retry=unfit.retry, reason=unfit.reason)

    def _finish(self, s: Session, order: JobOrder, rows: RunOutcome) -> None:
        if order.kind in ("bench", "compare"):
            registry.set_trouble(s, self._id, "")
        runs.finish_run(s, order.run_id, rows)

    def _end(self, order: JobOrder, ending: Ending | None) -> None:
        if ending is None:
            _log.warning("job %d was given to another worker; this run writes nothing", order.job_id)
            return
        try:
            self._written(ending)
        except OutcomeError as error:
            self._written(_failure(order.run_id, str(error), retry=False))
        except StaleRunError:
            _log.warning("job %d was cancelled or given to another worker; this run wrote nothing", order.job_id)
            self._written(lambda s: runs.cancelled_run(s, order.run_id))
        else:
            _log.info("job %d ended", order.job_id)

    def _written(self, action: Callable[[Session], T]) -> T:
        """Does `action` in one transaction; waits for a database that is away, so that an outage costs no result."""
        last_try = None
        while True:
            try:
                with self._database.session() as s:
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
    """A job's reporter: log and progress to the database, stop from the guard."""

    def __init__(self, database: Database, run_id: int, guard: LeaseGuard) -> None:
        self._scribe = LogWriter(database, run_id)
        self._guard = guard
        self.log = self._scribe.log
        self.progress = self._scribe.progress
        self.close = self._scribe.close

    def should_stop(self) -> str | None:
        return self._guard.reason()


class _StartReporter:
    """While the worker gets to know its device there is no run yet to log for."""

    def __init__(self, asked: threading.Event) -> None:
        self._asked = asked

    def log(self, text: str) -> None:
        _log.info("%s", text)

    def progress(self, done: int, total: int, text: str) -> None:
        """Nobody follows the start."""

    def should_stop(self) -> str | None:
        return STOPPING if self._asked.is_set() else None
