"""Renews the leases of worker and run, notices cancels, lost leases and more urgent jobs, and queues dead workers' jobs
again.

It has its own thread, and takes a second connection while a large result is written on the first, so that neither a
long build nor a long transaction delays it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from warpwatch.contract.words import RESUMABLE
from warpwatch.db import registry, runs, urgent
from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError
from warpwatch.db.reads.query import Session
from warpwatch.db.reaper import Reaper

CANCELLED = "cancelled"
LOST = "the job was given to another worker"
STOPPING = "the worker is shutting down"
CANCEL_SECONDS = 0.75
"""How often a running job asks whether it was cancelled, at most; a cancel takes effect within two seconds."""
_RESUMABLE = sorted(RESUMABLE)
_REASONS: dict[runs.Ownership, str] = {"cancel": CANCELLED, "lost": LOST}
_log = logging.getLogger(__name__)


class LeaseGuard:
    """One per worker process; `reason` is safe to ask from any thread and needs no database."""

    def __init__(self, database: Database, worker_id: int, lease_seconds: float) -> None:
        self._database = database
        self._worker_id = worker_id
        self._lease = lease_seconds
        self._reaper = Reaper(lease_seconds)
        self._run_id: int | None = None
        self._reason: str | None = None
        self._yield_to: int | None = None
        self._stopping = False
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stops watching, and marks the worker as stopped if the database can be reached."""
        self._ended.set()
        self._wake.set()
        self._thread.join()
        try:
            with self._database.session() as s:
                registry.stop_worker(s, self._worker_id)
        except EngineError as error:
            _log.warning("could not mark the worker as stopped: %s", error)

    def stop(self) -> None:
        """Asks every job to stop from now on, because the worker is shutting down."""
        self._stopping = True

    @property
    def stopping(self) -> bool:
        return self._stopping

    @contextmanager
    def watching(self, run_id: int) -> Iterator[None]:
        """Renews the lease of one run during the block."""
        self._run_id, self._reason, self._yield_to = run_id, None, None
        self._wake.set()
        try:
            yield
        finally:
            self._run_id = None

    def reason(self) -> str | None:
        """Why the watched run must stop; None when it may go on.

        A lost lease outweighs everything: nothing may be written then.
        """
        return self._reason or (STOPPING if self._stopping else None)

    @property
    def yield_to(self) -> int | None:
        """The more urgent job that waits for the device of the watched run."""
        return self._yield_to

    def _watch(self) -> None:
        period = self._lease / 5
        next_beat = time.monotonic()
        while not self._ended.is_set():
            self._wake.clear()
            run_id = self._run_id
            # Errors must not end the guard: without it the worker would look dead and would not notice.
            try:
                if time.monotonic() >= next_beat:
                    self._beat(run_id)
                    next_beat = time.monotonic() + period
                elif run_id is not None:
                    with self._database.session(single=True) as s:
                        self._obey(s, run_id, runs.read_ownership(s, run_id))
            except EngineError as error:
                _log.warning("%s", error)
            except Exception:  # noqa: BLE001
                _log.exception("the guard failed because of an internal error")
            # An error leaves the beat due, but must not make this loop spin.
            pause = max(next_beat - time.monotonic(), min(period, CANCEL_SECONDS))
            self._wake.wait(pause if self._run_id is None else min(pause, CANCEL_SECONDS))

    def _beat(self, run_id: int | None) -> None:
        """Renews the leases; the one worker that leads also looks for the jobs of dead ones."""
        with self._database.session() as s:
            registry.worker_heartbeat(s, self._worker_id)
            if run_id is not None:
                self._obey(s, run_id, runs.heartbeat(s, run_id))
            leads = registry.is_oldest_alive(s, self._worker_id, self._lease)
        if leads:
            with self._database.session() as s:
                for job_id in self._reaper.sweep(s):
                    _log.warning("job %d was given back: its worker was silent for %g s", job_id, self._lease)

    def _obey(self, s: Session, run_id: int, ownership: runs.Ownership) -> None:
        urgent_job_id = urgent.find_urgent(s, run_id, _RESUMABLE, self._lease) if ownership == "urgent" else None
        if run_id == self._run_id:
            self._yield_to = urgent_job_id
            self._reason = _REASONS.get(ownership, self._reason)
