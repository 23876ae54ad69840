"""What a worker needs of the service that gives it jobs: the database itself, or a server that keeps it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from threading import Event
from typing import Protocol, TypeVar

from warpwatch.contract.claims import ClaimedJob, LeaseState, RunEnding, RunProgress, WorkerDescription
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import Reason
from warpwatch.db.errors import DatabaseDownError, DatabaseFullError, EngineError

T = TypeVar("T")
_RETRY_SECONDS = 1.0
_LAST_TRY_SECONDS = 10.0
"""How long a worker that was told to stop still tries to reach the service."""
_log = logging.getLogger(__name__)


class ServerDownError(EngineError):
    """The server cannot be reached."""


class UnusableKeyError(EngineError):
    """The server does not accept the worker's key: it is wrong, or was revoked. Make one with `warpwatch key add`."""


class Coordinator(Protocol):
    """Gives one worker its jobs and takes their results. Every method may be called from any thread.

    lease_seconds: how long a silent run keeps its job. renewal_seconds: how often leases are renewed. poll_seconds: how
    often a run asks between two renewals whether it may go on. log_seconds: how often a run writes its log.
    """

    lease_seconds: float
    renewal_seconds: float
    poll_seconds: float
    log_seconds: float

    async def serve(self, handle: Callable[[ClaimedJob], None], stop: asyncio.Event) -> None:
        """Calls `handle` for one job after the other, in a thread, until `stop` is set; then waits for it."""

    def list_waiting(self, limit: int) -> list[JobRequest]:
        """The jobs that the workers of this device take next."""
        ...

    def watch_lease(self, run_id: int | None, *, renew: bool, hold_seconds: float) -> LeaseState:
        """Renews the leases of worker and run, if asked to, and says whether the run may go on.

        It may answer later, by up to `hold_seconds`, and then answers at once when the run must stop.
        """
        ...

    def write_log(self, run_id: int, text: str, progress: RunProgress | None) -> None:
        """Adds to the log of a run, and replaces its progress; StaleRunError when it has ended."""

    def end_run(self, job: ClaimedJob, ending: RunEnding, outcome: Outcome | None) -> None:
        """Ends a run with what it found; StaleRunError when it owns its job no more, and then nothing was written.

        Waits while the service cannot be reached, so that no result is lost. The traces of the outcome are files.
        """

    def pause(self, seconds: float, reason: Reason) -> None:
        """Says that the worker takes no job for a while, and why."""

    def resume(self) -> None:
        """Says that the worker takes jobs again."""

    def close(self) -> None:
        """Marks the worker as stopped, if the service can be reached."""


Connect = Callable[[WorkerDescription, Event], Coordinator]
"""Registers a worker. The event is set when the worker was told to stop."""


def wait_out(action: Callable[[], T], stop_requested: Event) -> T:
    """The result of `action`, which is tried again while the service cannot be reached."""
    last_try = None
    while True:
        try:
            return action()
        except (ServerDownError, DatabaseDownError, DatabaseFullError) as error:
            if stop_requested.is_set() and last_try is None:
                last_try = time.monotonic() + _LAST_TRY_SECONDS
            if last_try is not None and time.monotonic() > last_try:
                raise
            _log.warning("%s; trying again", error)
            time.sleep(_RETRY_SECONDS)
