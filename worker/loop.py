"""The queue worker: executes one job after the other for one device, until it is told to stop."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import math
import os
import shutil
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from warpwatch import __version__, telemetry
from warpwatch.contract.activities import Activity
from warpwatch.contract.claims import ClaimedJob, EndingKind, RunEnding, WorkerDescription
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.data_folder import judgements_folder, secret_paths, undelivered_folder
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.words import HOST_REASONS, Reason
from warpwatch.logs import JOB_ID
from warpwatch.settings import Settings
from warpwatch.worker import groups, levels, sandbox
from warpwatch.worker.ahead import JOBS, BuildAhead
from warpwatch.worker.coordinator import Connect, Coordinator, LostRunError, UnusableKeyError
from warpwatch.worker.devices import lock_device, physical_id
from warpwatch.worker.execution import execute
from warpwatch.worker.guard import CANCELLED, LOST, STOPPING, LeaseGuard
from warpwatch.worker.host import Host
from warpwatch.worker.outages import find_trouble, reason_of, require_space
from warpwatch.worker.reporter import CannotRunError, LogWriter, Reporter, SilentReporter, Stopped
from warpwatch.worker.toolchains import ToolchainError, read_toolchains
from warpwatch.worker.tools import Tools

FAILURES_BEFORE_PAUSE = 3
FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 600.0
_PR_SET_DUMPABLE = 4
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """When a worker ends by itself: once it had no job for `idle_seconds`, and `total_seconds` after its start."""

    idle_seconds: float = math.inf
    total_seconds: float = math.inf


def run_worker(
    settings: Settings,
    device: str,
    connect: Connect,
    limits: WorkerLimits = WorkerLimits(),
) -> None:
    """Runs the jobs of `device` until SIGTERM or SIGINT, or for as long as `limits` says; then the running job goes
    back into the queue.

    Raises CannotRunError when the device cannot be used, ServerError when the server cannot, Stopped when told to stop
    before it had begun to serve.
    """
    # Without a user namespace kernel code could read the worker's key from /proc.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    begin = time.monotonic()
    stop_requested = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop_requested.set())
    # One thread measures for the whole life of the worker: the kernel ends a child when the thread that started it
    # ends.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="measuring") as bench:
        worker = bench.submit(_Worker, settings, device, connect, stop_requested).result()
        try:
            asyncio.run(_serve(worker, stop_requested, bench, limits, begin))
        finally:
            bench.submit(worker.close).result()


async def _serve(
    worker: _Worker, stop_requested: threading.Event, bench: ThreadPoolExecutor, limits: WorkerLimits, begin: float
) -> None:
    stop = asyncio.Event()

    async def forward() -> None:
        while not stop_requested.is_set():
            await asyncio.sleep(0.1)
            now, idle_since = time.monotonic(), worker.idle_since
            if now - begin > limits.total_seconds:
                _log.info("this worker may stay for %g s, and it has", limits.total_seconds)
                break
            if idle_since is not None and now - idle_since > limits.idle_seconds:
                _log.info("no job came for %g s", limits.idle_seconds)
                break
        _log.info("stopping; a running job goes back into the queue")
        stop_requested.set()
        worker.guard.stop()
        stop.set()

    forwarding = asyncio.create_task(forward())
    _log.info("serving %s as %s", worker.device_key, worker.name)
    try:
        await worker.coordinator.serve(lambda job: bench.submit(worker.handle, job).result(), stop)
    finally:
        stop_requested.set()
        await forwarding


def _names_of_toolchains(home: Path) -> list[str] | None:
    """Those of worker.toml; None where it cannot be read, which each job that needs one of them reports."""
    try:
        return [*read_toolchains(home)]
    except ToolchainError:
        return None


class _Worker:
    """The worker of one device; one thread measures. The worker registers with the server, and `close` reports its
    end."""

    def __init__(
        self,
        settings: Settings,
        device: str,
        connect: Connect,
        stop_requested: threading.Event,
    ) -> None:
        self.coordinator: Coordinator = connect(stop_requested)
        self.coordinator.deliver_stored()
        physical = physical_id(device)
        self._device_lock = lock_device(device, physical)
        # A folder that is not there yet cannot be hidden.
        for folder in (undelivered_folder(settings.home), judgements_folder(settings.home)):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        host = Host(settings, device, secret_paths(settings.home), group=groups.claim(groups.find_own_group()))
        self.name = f"{socket.gethostname()}-{os.getpid()}-{device.replace(':', '')}"
        self._tools = Tools(host)
        environment, peaks = self._tools.identify(_StartReporter(stop_requested))
        self.device_key = environment.device_key
        confinement = host.confinement()
        described = WorkerDescription(
            self.name,
            __version__,
            device,
            confinement.isolation,
            [str(protection) for protection in levels.missing_protections(confinement)],
            physical,
            environment,
            peaks,
            toolchains=_names_of_toolchains(settings.home),
        )
        self.coordinator.register(described)
        self.guard = LeaseGuard(self.coordinator)
        self.guard.start()
        self._ahead = BuildAhead(self._tools, lambda: self.coordinator.list_waiting(JOBS))
        self._stop_requested = stop_requested
        self._stopwatch = host.stopwatch
        self._failed: list[str] = []
        """The commits of the jobs that failed in a row for a reason that speaks against this machine."""
        self.idle_since: float | None = time.monotonic()
        """None while a job runs."""

    def close(self) -> None:
        self._ahead.close()
        self._tools.close()
        self.guard.close()
        self.coordinator.close()
        if self._device_lock is not None:
            self._device_lock.close()

    def handle(self, job: ClaimedJob) -> None:
        """Executes a job and writes how it ended."""
        self.idle_since = None
        JOB_ID.set(job.job_id)
        request, begin = job.request, time.monotonic()
        _log.info(
            "job %d: %s %s at %s, attempt %d",
            job.job_id,
            request.kind,
            request.operator,
            short_sha(request.sha),
            job.attempt,
        )
        name = f"{request.kind} {request.operator}"
        with (
            telemetry.span(name, job.trace_parent, job_id=job.job_id, sha=request.sha, device=self.device_key) as span,
            self.guard.watching(job.run_id),
            ExitStack() as stack,
        ):
            self._stopwatch.take()
            reporter = _RunReporter(self.coordinator, job, self.guard)
            try:
                ended = self._run(job, reporter, stack)
            finally:
                log = reporter.close()
            self._await_step(job, ended, begin)
            reason = self._end(job, ended, log, span)
        self._pause_after(reason, request.sha)
        self.idle_since = time.monotonic()
        JOB_ID.set(None)

    def _run(self, job: ClaimedJob, reporter: _RunReporter, stack: ExitStack) -> Outcome | Stopped | CannotRunError:
        """Executes the job. Its traces are kept until `stack` is closed."""
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
            if error.reason is Reason.HOST_FAULT and not self._is_machine_at_fault(reporter):
                return CannotRunError(str(error), retry=error.retry)
            return error
        except Exception as error:  # noqa: BLE001 - an internal error must not end the worker or leave its job running
            _log.exception("job %d failed because of an internal error", job.job_id)
            # The next attempt makes its checkout anew.
            self._tools.close()
            reason = reason_of(error, self._tools.host.home)
            if reason is None or (reason is not Reason.GIT_UNREACHABLE and not self._is_machine_at_fault(reporter)):
                reason = Reason.INTERNAL_ERROR
            return CannotRunError(f"internal error: {type(error).__name__}: {error}", retry=True, reason=reason)

    def _is_machine_at_fault(self, reporter: Reporter) -> bool:
        """Whether this machine fails without the commit that has just failed on it, and without its children, too."""
        self._tools.close()
        trouble = find_trouble(self._tools.host, SilentReporter())
        reporter.log(
            f"this machine fails without any commit as well: {trouble}"
            if trouble is not None
            else "this machine works without this commit, which therefore loses an attempt"
        )
        return trouble is not None

    def _await_step(self, job: ClaimedJob, ended: Outcome | Stopped | CannotRunError, begin: float) -> None:
        """Holds the device until the end of a sealed job's step, however the job ended: everybody whose job comes next
        sees when the device is free, and kernel code chooses how long it takes."""
        is_taken = isinstance(ended, Stopped) and ended.reason in (LOST, STOPPING)
        if job.request.spec.step_seconds is not None and not is_taken:
            self._stop_requested.wait((begin - time.monotonic()) % job.request.spec.step_seconds)

    def _end(
        self, job: ClaimedJob, ended: Outcome | Stopped | CannotRunError, log: str, span: telemetry.OpenSpan
    ) -> Reason | None:
        """Writes how the job ended, and the rest of its log; returns the reason when it could not run."""
        times = self._stopwatch.take()
        for activity, seconds in times.by_activity().items():
            span.note(f"warpwatch.seconds.{activity}", seconds)
        if isinstance(ended, Stopped) and ended.reason == LOST:
            _log.warning("job %d belongs to another worker now; this run writes nothing", job.job_id)
            return None
        outcome: Outcome | None = None
        if isinstance(ended, Outcome):
            ending, outcome = RunEnding(EndingKind.DONE, times), ended
        elif isinstance(ended, CannotRunError):
            ending = RunEnding(EndingKind.FAILED, times, str(ended), ended.retry, ended.reason)
        else:
            kind = EndingKind.CANCELLED if ended.reason == CANCELLED else EndingKind.RELEASED
            kind = EndingKind.YIELDED if ended.yielded_to is not None else kind
            ending, outcome = RunEnding(kind, times, yielded_to=ended.yielded_to), ended.outcome
        span.note("warpwatch.ending", ending.kind)
        try:
            with telemetry.step(Activity.RECORD):
                self.coordinator.end_run(job, ending, outcome, log)
        except LostRunError:
            _log.warning("job %d was cancelled or given to another worker; this run wrote nothing", job.job_id)
            return None
        except UnusableKeyError as error:
            _log.warning("job %d: %s", job.job_id, error)
            return None
        _log.info("job %d ended", job.job_id)
        return ending.reason

    def _pause_after(self, reason: Reason | None, sha: str) -> None:
        """Takes no job for a while when several in a row failed for a reason that speaks against this machine.

        Each of them would cost another job an attempt. The next job is the trial whether the machine works again. Where
        all of them are of one commit, the machine must fail without it as well: no commit stops a device for others.
        """
        if reason is None or reason not in HOST_REASONS:
            self._failed.clear()
            return
        self._failed.append(sha)
        failures = len(self._failed)
        if failures < FAILURES_BEFORE_PAUSE:
            return
        if len(set(self._failed)) == 1 and find_trouble(self._tools.host, SilentReporter()) is None:
            _log.warning("%d jobs in a row failed (%s), all of commit %s; going on with others", failures, reason, sha)
            return
        seconds = min(FIRST_PAUSE_SECONDS * 2 ** (failures - FAILURES_BEFORE_PAUSE), LONGEST_PAUSE_SECONDS)
        _log.warning("%d jobs in a row failed (%s); pausing for %g s", failures, reason, seconds)
        self.coordinator.pause(seconds, reason)
        if not self._stop_requested.wait(seconds):
            self.coordinator.resume()


class _RunReporter:
    """A job's reporter: writes log and progress, and asks the guard whether to stop."""

    def __init__(self, coordinator: Coordinator, job: ClaimedJob, guard: LeaseGuard) -> None:
        self._writer = LogWriter(coordinator, job.run_id, is_careful=job.attempt > 1)
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
