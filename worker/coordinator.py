"""Interface of a worker to the server that gives it jobs."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from threading import Event
from typing import Protocol, TypeVar

from warpwatch.contract.claims import ClaimedJob, LeaseState, RunEnding, RunProgress, WorkerDescription
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import Reason

T = TypeVar("T")
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 60.0
"""Bounds of the pause after the first failed request, and after many."""
_LAST_TRY_SECONDS = 10.0
"""How long a worker that was told to stop still tries to reach the server."""
_log = logging.getLogger(__name__)


class ServerError(Exception):
    """The server cannot do what the worker asks of it; the docstring of each class is its message."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class ServerDownError(ServerError):
    """The server cannot be reached."""

    def __init__(self, message: str | None = None, retry_after: float = 0.0) -> None:
        """retry_after: for how many seconds it asks not to be asked again."""
        super().__init__(message)
        self.retry_after = retry_after


class UnusableKeyError(ServerError):
    """The server does not accept the worker's key: it is wrong, or was revoked. Make one with `warpwatch key add`."""


class LostRunError(ServerError):
    """The job no longer belongs to this run: its lease ran out, or it was cancelled or given to another worker.

    Nothing was written.
    """


class RefusedRequestError(ServerError):
    """The server refuses a request of the worker."""


class Coordinator(Protocol):
    """Gives one worker its jobs and takes their results. Every method may be called from any thread.

    lease_seconds: how long a silent run keeps its job. renewal_seconds: how often leases are renewed. poll_seconds: how
    often a run asks between two renewals whether it may go on. log_seconds: how often a run writes its log.
    """

    lease_seconds: float
    renewal_seconds: float
    poll_seconds: float
    log_seconds: float

    def deliver_stored(self) -> None:
        """Delivers how runs ended whose workers were stopped or killed while the server was away.

        A worker does this first: the server waits for them no longer than a lease.
        """

    def register(self, worker: WorkerDescription) -> None:
        """Says who the worker is, before it asks for anything else."""

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
        """Adds to the log of a run, and replaces its progress; LostRunError when it has ended."""

    def end_run(self, job: ClaimedJob, ending: RunEnding, outcome: Outcome | None, log: str = "") -> None:
        """Ends a run with what it found; LostRunError when it owns its job no more, and then nothing was written.

        Waits while the server cannot be reached. A worker that is stopped or killed meanwhile leaves the ending on its
        disk, and the next worker of its data folder delivers it. The traces of the outcome are files. log: the end of
        the run's log, where it could not be written before.
        """

    def pause(self, seconds: float, reason: Reason) -> None:
        """Says that the worker takes no job for a while, and why."""

    def resume(self) -> None:
        """Says that the worker takes jobs again."""

    def close(self) -> None:
        """Marks the worker as stopped, if the server can be reached."""


Connect = Callable[[Event], Coordinator]
"""Makes what a worker reaches its server through. The event is set when the worker was told to stop."""


def pause_seconds(failures: int, error: Exception, longest: float | None = None) -> float:
    """Seconds to wait after so many failed requests in a row, and the time that the server asks for besides.

    They are random below a bound that doubles with each failure: the longer a server is overloaded, the less often a
    fleet asks it, and never all workers at once.
    """
    longest = LONGEST_PAUSE_SECONDS if longest is None else longest
    bound = min(FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 16), longest)
    asked = error.retry_after if isinstance(error, ServerDownError) else 0.0
    return min(asked, longest) + random.uniform(bound / 2, bound)


def wait_out(action: Callable[[], T], stop_requested: Event) -> T:
    """The result of `action`, which is tried again while the server cannot be reached."""
    last_try, failures = None, 0
    while True:
        try:
            return action()
        except ServerDownError as error:
            if stop_requested.is_set() and last_try is None:
                last_try = time.monotonic() + _LAST_TRY_SECONDS
            if last_try is not None and time.monotonic() > last_try:
                raise
            failures += 1
            if stop_requested.is_set():
                time.sleep(min(pause_seconds(1, error), _LAST_TRY_SECONDS / 4))
                continue
            pause = pause_seconds(failures, error)
            _log.warning("%s; trying again in %.1f s", error, pause)
            stop_requested.wait(pause)
