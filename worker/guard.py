"""Renews the leases of worker and run, and notices cancels, lost leases and more urgent jobs.

It has its own thread, so that neither a long build nor a long transaction delays it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from warpwatch.contract.claims import LeaseState
from warpwatch.worker.coordinator import Coordinator, ServerError, UnusableKeyError, pause_seconds

CANCELLED = "cancelled"
LOST = "the job was given to another worker"
STOPPING = "the worker is shutting down"
_log = logging.getLogger(__name__)


class LeaseGuard:
    """One per worker process; `reason` is safe to ask from any thread and needs no connection."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
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
        """Stops watching."""
        self._ended.set()
        self._wake.set()
        self._thread.join()

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
        coordinator = self._coordinator
        period = coordinator.renewal_seconds
        next_beat, failures = time.monotonic(), 0
        while not self._ended.is_set():
            self._wake.clear()
            run_id = self._run_id
            failed: ServerError | None = None
            # Errors must not end the guard: without it the worker would look dead and would not notice.
            try:
                is_due = time.monotonic() >= next_beat
                if is_due or run_id is not None:
                    hold = period if is_due else max(0.0, next_beat - time.monotonic())
                    self._obey(run_id, coordinator.watch_lease(run_id, renew=is_due, hold_seconds=hold))
                if is_due:
                    next_beat = time.monotonic() + period
                failures = 0
            except UnusableKeyError:
                # Nothing may be written any more, and the worker ends as soon as it asks for its next job.
                self._obey(run_id, LeaseState(is_lost=True))
                next_beat = time.monotonic() + period
            except ServerError as error:
                _log.warning("%s", error)
                failures, failed = failures + 1, error
            except Exception:  # noqa: BLE001
                _log.exception("the guard failed because of an internal error")
            # An error leaves the beat due, but must not make this loop spin.
            poll = min(period, coordinator.poll_seconds)
            if failed is not None:
                # Half of a renewal, so that a lease of four survives some failures.
                poll = max(poll, pause_seconds(failures, failed, period / 2))
            pause = max(next_beat - time.monotonic(), poll)
            if self._wake.wait(pause if self._run_id is None else min(pause, poll)):
                # A run has begun. One that is over sooner asks nothing, which saves a third of the requests of a job.
                self._ended.wait(poll)

    def _obey(self, run_id: int | None, state: LeaseState) -> None:
        if run_id is not None and run_id == self._run_id:
            self._yield_to = state.yield_to
            self._reason = CANCELLED if state.is_cancelled else LOST if state.is_lost else self._reason
