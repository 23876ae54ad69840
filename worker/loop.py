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
from contextlib import ExitStack
from typing import Any, TypeVar

from warpwatch import __version__
from warpwatch.contract.activities import Activity, RunTimes
from warpwatch.contract.outcome import Outcome, PartialOutcome
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import HOST_REASONS, RESUMABLE, Reason
from warpwatch.db import embedded, queue, registry, runs
from warpwatch.db.database import Database
from warpwatch.db.errors import DatabaseDownError, DatabaseFullError, EngineError, OutcomeError, StaleRunError
from warpwatch.db.reads.query import Session
from warpwatch.db.results import OutcomeNames
from warpwatch.db.runs import ClaimedJob
from warpwatch.logs import JOB_ID
from warpwatch.settings import Settings
from warpwatch.worker import groups, sandbox
from warpwatch.worker.ahead import JOBS, BuildAhead
from warpwatch.worker.checkout import Tools
from warpwatch.worker.device_lock import lock_device, physical_id
from warpwatch.worker.execution import execute
from warpwatch.worker.guard import CANCELLED, LOST, STOPPING, LeaseGuard
from warpwatch.worker.host import Host
from warpwatch.worker.log_writer import LogWriter
from warpwatch.worker.outages import reason_of, require_space
from warpwatch.worker.reporter import CannotRunError, SilentReporter, Stopped, UnhealthyError

T = TypeVar("T")
_RETRY_SECONDS = 1.0
FAILURES_BEFORE_PAUSE = 3
FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 600.0
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
        self.database = Database.of_worker(database_url)
        confinement = host.confinement()
        facts: dict[str, Any] = {
            "device": device,
            "isolation": confinement.isolation,
            "missing_protections": sandbox.missing_protections(confinement),
            "physical": physical,
        }
        with self.database.session() as s:
            environment_id, device_id = registry.ensure_environment(s, environment, peaks)
            facts["environment_id"] = environment_id
            worker_id = registry.register_worker(s, self.name, device_id, __version__, facts)
        self._id = worker_id
        self.guard = LeaseGuard(self.database, worker_id, settings.lease_seconds)
        self.guard.start()
        self._ahead = BuildAhead(host, lambda: self._waiting(device_id))
        self._stop_requested = stop_requested
        self._stopwatch = host.stopwatch
        self._failures = 0

    def _waiting(self, device_id: int) -> list[JobRequest]:
        with self.database.session() as s:
            return runs.list_waiting(s, device_id, JOBS)

    def close(self) -> None:
        self._ahead.close()
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
        JOB_ID.set(job_id)
        request = job.request
        _log.info(
            "job %d: %s %s at %s, attempt %d", job_id, request.kind, request.operator, request.sha[:12], job.attempt
        )
        with self.guard.watching(job.run_id), ExitStack() as stack:
            self._stopwatch.take()
            reason = self._end(job, self._run(job, stack))
        self._pause_after(reason)
        JOB_ID.set(None)

    def _run(self, job: ClaimedJob, stack: ExitStack) -> Outcome | Stopped | CannotRunError:
        """Executes the job. Its traces are kept until `stack` is closed."""
        reporter = _RunReporter(self.database, job, self.guard)
        try:
            require_space(self._tools.host.settings)
            traces = sandbox.make_temp()
            stack.callback(shutil.rmtree, traces, ignore_errors=True)
            with self._ahead.beside(job.request, reporter):
                return execute(job.request, self._tools, reporter, traces, job.partial)
        except Stopped as stopped:
            return stopped
        except CannotRunError as error:
            reporter.log(str(error))
            return error
        except Exception as error:  # noqa: BLE001 - an internal error must not end the worker or leave its job running
            _log.exception("job %d failed because of an internal error", job.job_id)
            reason = reason_of(error, self._tools.host.home) or Reason.INTERNAL_ERROR
            return CannotRunError(f"internal error: {type(error).__name__}: {error}", retry=True, reason=reason)
        finally:
            reporter.close()

    def _end(self, job: ClaimedJob, ended: Outcome | Stopped | CannotRunError) -> Reason | None:
        """Writes how the job ended; returns the reason when it could not run."""
        try:
            if isinstance(ended, Outcome):
                self._record(job, ended)
            elif isinstance(ended, CannotRunError):
                failure, times = ended, self._stopwatch.take()
                self._write(lambda s: self._fail(s, job.run_id, failure, times))
                return failure.reason
            elif ended.reason == LOST:
                _log.warning("job %d belongs to another worker now; this run writes nothing", job.job_id)
            else:
                self._hand_back(job, ended)
        except StaleRunError:
            _log.warning("job %d was cancelled or given to another worker; this run wrote nothing", job.job_id)
            self._write(lambda s: runs.cancelled_run(s, job.run_id))
        else:
            _log.info("job %d ended", job.job_id)
        return None

    def _record(self, job: ClaimedJob, outcome: Outcome) -> None:
        """Records the outcome; one that cannot be stored ends the job at once, because a retry would end the same."""
        try:
            if job.request.patch is not None:
                spent = self._stopwatch.take()
                self._write(lambda s: runs.finish_patch_run(s, job.run_id, outcome, spent))
                return
            with self._stopwatch.measure(Activity.RECORD):
                names = self._write(lambda s: runs.prepare_finish(s, job.job_id, outcome))
            times = self._stopwatch.take()
            self._write(lambda s: self._finish(s, job, outcome, names, times))
        except Exception as error:
            if isinstance(error, EngineError) and not isinstance(error, OutcomeError):
                raise
            message = f"the results cannot be stored: {type(error).__name__}: {error}"
            self._write(lambda s: runs.fail_run(s, job.run_id, message, retry=False, reason=Reason.UNSTORABLE))

    def _hand_back(self, job: ClaimedJob, stopped: Stopped) -> None:
        """Ends a run that was asked to stop, and keeps what it found; what cannot be stored is measured again."""
        times, partial = self._stopwatch.take(), None
        if stopped.outcome is not None and job.request.kind in RESUMABLE:
            partial = PartialOutcome(stopped.outcome.environment.key, stopped.outcome.findings)
        try:
            self._write(lambda s: _stop(s, job.run_id, stopped, times, partial))
        except Exception as error:
            if isinstance(error, EngineError):
                raise
            _log.warning("the results of job %d until now are not kept: %s", job.job_id, error)
            self._write(lambda s: _stop(s, job.run_id, stopped, times, None))

    def _finish(self, s: Session, job: ClaimedJob, outcome: Outcome, names: OutcomeNames, times: RunTimes) -> None:
        if job.request.kind in ("bench", "compare"):
            registry.set_trouble(s, self._id, "")
        runs.finish_run(s, job.run_id, outcome, names, times)

    def _fail(self, s: Session, run_id: int, failure: CannotRunError, times: RunTimes) -> None:
        """Ends the run; an unfit device is marked until a measurement on it succeeds."""
        if isinstance(failure, UnhealthyError):
            registry.set_trouble(s, self._id, str(failure))
        runs.fail_run(s, run_id, str(failure), retry=failure.retry, reason=failure.reason)
        runs.store_times(s, run_id, times)

    def _pause_after(self, reason: Reason | None) -> None:
        """Takes no job for a while when several in a row failed for a reason that speaks against this machine.

        Each of them would cost another job an attempt. The next job is the trial whether the machine works again.
        """
        self._failures = self._failures + 1 if reason in HOST_REASONS else 0
        if reason is None or self._failures < FAILURES_BEFORE_PAUSE:
            return
        seconds = min(FIRST_PAUSE_SECONDS * 2 ** (self._failures - FAILURES_BEFORE_PAUSE), LONGEST_PAUSE_SECONDS)
        _log.warning("%d jobs in a row failed (%s); pausing for %g s", self._failures, reason, seconds)
        self._write(lambda s: registry.pause_worker(s, self._id, seconds, reason))
        if not self._stop_requested.wait(seconds):
            self._write(lambda s: registry.resume_worker(s, self._id))

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


def _stop(s: Session, run_id: int, stopped: Stopped, times: RunTimes, partial: PartialOutcome | None) -> None:
    if stopped.yielded_to is not None:
        runs.yield_run(s, run_id, stopped.yielded_to, partial)
    elif stopped.reason == CANCELLED:
        runs.cancelled_run(s, run_id)
    else:
        runs.release_run(s, run_id, partial)
    runs.store_times(s, run_id, times)


class _RunReporter:
    """A job's reporter: writes log and progress to the database, and asks the guard whether to stop."""

    def __init__(self, database: Database, job: ClaimedJob, guard: LeaseGuard) -> None:
        self._writer = LogWriter(database, job.run_id, is_careful=job.attempt > 1)
        self._guard = guard
        self.log = self._writer.log
        self.progress = self._writer.progress
        self.close = self._writer.close

    def should_stop(self) -> str | None:
        return self._guard.reason()

    def should_yield(self) -> int | None:
        return self._guard.yield_to


class _StartReporter(SilentReporter):
    """Reports while the worker identifies its device, when there is no run to log for."""

    def __init__(self, stop_requested: threading.Event) -> None:
        self._stop_requested = stop_requested

    def log(self, text: str) -> None:
        _log.info("%s", text)

    def should_stop(self) -> str | None:
        return STOPPING if self._stop_requested.is_set() else None
