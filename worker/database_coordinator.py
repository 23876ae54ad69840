"""A worker with the database's address: a trusted host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import TypeVar

from warpwatch.contract.claims import ClaimedJob, LeaseState, RunEnding, RunProgress, WorkerDescription
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import Reason
from warpwatch.db import leases, queue, registry, runs
from warpwatch.db.database import Database
from warpwatch.db.endings import EndedRun, end_run
from warpwatch.db.errors import EngineError
from warpwatch.db.reads.query import Session
from warpwatch.db.reaper import Reaper
from warpwatch.worker.coordinator import Connect, Coordinator, wait_out

T = TypeVar("T")
_log = logging.getLogger(__name__)


def connect_to_database(url: str, lease_seconds: float) -> Connect:
    """Registers a worker in the database at `url`."""

    def connect(worker: WorkerDescription, stop_requested: Event) -> Coordinator:
        return DatabaseCoordinator(Database.of_worker(url), worker, lease_seconds, stop_requested)

    return connect


class DatabaseCoordinator:
    """Claims jobs from the queue, writes results itself, and queues the jobs of dead workers again."""

    log_seconds = 0.5
    poll_seconds = 0.75
    """At most: a cancel takes effect within two seconds."""

    def __init__(
        self, database: Database, worker: WorkerDescription, lease_seconds: float, stop_requested: Event
    ) -> None:
        self.lease_seconds = lease_seconds
        self.renewal_seconds = lease_seconds / 5
        self.database = database
        self._device_key = worker.environment.device_key
        self._stop_requested = stop_requested
        self._reaper = Reaper(lease_seconds)
        with database.session() as s:
            self.worker_id, self._device_id = leases.register(s, worker)

    async def serve(self, handle: Callable[[ClaimedJob], None], stop: asyncio.Event) -> None:
        def begin(job_id: int) -> None:
            job = self.claim(job_id)
            if job is None:
                _log.info("job %d is no longer queued", job_id)
            else:
                handle(job)

        await queue.run_worker(self.database, self._device_key, begin, stop)

    def claim(self, job_id: int) -> ClaimedJob | None:
        """The job, if it is still queued."""
        return self._write(lambda s: runs.begin_run(s, job_id, self.worker_id))

    def list_waiting(self, limit: int) -> list[JobRequest]:
        with self.database.session() as s:
            return runs.list_waiting(s, self._device_id, limit)

    def watch_lease(
        self,
        run_id: int | None,
        *,
        renew: bool,
        hold_seconds: float,  # noqa: ARG002 - it answers at once
    ) -> LeaseState:
        """The one worker that leads also looks for the jobs of dead ones when it renews."""
        if not renew:
            with self.database.session(single=True) as s:
                return LeaseState() if run_id is None else leases.read_lease(s, run_id, self.lease_seconds)
        with self.database.session() as s:
            state = leases.renew(s, self.worker_id, run_id, self.lease_seconds)
            leads = registry.is_oldest_alive(s, self.worker_id, self.lease_seconds)
        if leads:
            with self.database.session() as s:
                for job_id in self._reaper.sweep(s):
                    _log.warning("job %d was given back: its worker was silent for %g s", job_id, self.lease_seconds)
        return state

    def write_log(self, run_id: int, text: str, progress: RunProgress | None) -> None:
        with self.database.session() as s:
            leases.write_log(s, run_id, text, progress)

    def end_run(self, job: ClaimedJob, ending: RunEnding, outcome: Outcome | None) -> None:
        request = job.request
        run = EndedRun(self.worker_id, job.job_id, job.run_id, request.kind, request.patch is not None)
        end_run(self._write, run, ending, outcome)

    def pause(self, seconds: float, reason: Reason) -> None:
        self._write(lambda s: registry.pause_worker(s, self.worker_id, seconds, reason))

    def resume(self) -> None:
        self._write(lambda s: registry.resume_worker(s, self.worker_id))

    def close(self) -> None:
        try:
            with self.database.session() as s:
                registry.stop_worker(s, self.worker_id)
        except EngineError as error:
            _log.warning("could not mark the worker as stopped: %s", error)
        self.database.close()

    def _write(self, action: Callable[[Session], T]) -> T:
        """Runs `action` in one transaction; waits while the database cannot be reached."""
        return wait_out(partial(self._write_once, action), self._stop_requested)

    def _write_once(self, action: Callable[[Session], T]) -> T:
        with self.database.session() as s:
            return action(s)
