"""Reports of a working worker to the database: heartbeat and progress of the run. The reaper gives back
the jobs of workers that died."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.orm import Session

from warpwatch.contract.claims import LeaseState, RunProgress
from warpwatch.contract.words import RESUMABLE, RunState
from warpwatch.db import registry, runs
from warpwatch.db.models import RunRecord
from warpwatch.db.urgent import find_urgent
from warpwatch.db.worker_keys import forget_ended_chunks

_RESUMABLE = sorted(RESUMABLE)


def renew(session: Session, worker_id: int, run_id: int | None, lease_seconds: float) -> LeaseState:
    """Renews the leases of the worker and of its run, if it has one; answers like `read_lease`."""
    registry.worker_heartbeat(session, worker_id)
    return LeaseState() if run_id is None else _state(session, run_id, runs.heartbeat(session, run_id), lease_seconds)


def read_lease(session: Session, run_id: int, lease_seconds: float) -> LeaseState:
    """Whether the run may go on."""
    return _state(session, run_id, runs.read_ownership(session, run_id), lease_seconds)


def _state(session: Session, run_id: int, ownership: runs.Ownership, lease_seconds: float) -> LeaseState:
    yield_to = find_urgent(session, run_id, _RESUMABLE, lease_seconds) if ownership == "urgent" else None
    return LeaseState(ownership == "lost", ownership == "cancel", yield_to)


def write_log(session: Session, run_id: int, text: str, progress: RunProgress | None) -> None:
    """Adds to the log of a run, and replaces its progress; StaleRunError when it has ended."""
    if text:
        runs.append_log(session, run_id, text)
    if progress is not None:
        runs.set_progress(session, run_id, progress.done, progress.total, progress.text, progress.cell)


class Reaper:
    """Declares a worker dead only after this object has itself seen the same heartbeat for a whole lease.

    So an outage of the database, a reaper that was itself paused, or clocks that differ between hosts cost nobody his
    job. Keep one per process and call `sweep` at least twice per lease; better five times.
    """

    def __init__(self, lease_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease = lease_seconds
        self._clock = clock
        self._first_seen: dict[tuple[object, ...], float] = {}
        self._last_sweep = clock()

    def sweep(self, session: Session) -> list[int]:
        """Ids of the jobs that were given back to the queue or, after their last attempt, failed."""
        running = session.execute(
            select(RunRecord.id, RunRecord.heartbeat_at).where(RunRecord.state == RunState.RUNNING)
        ).all()
        silent = self._unchanged_for_a_lease([tuple(row) for row in running])
        forget_ended_chunks(session)
        message = f"its worker was silent for {self._lease:g} s"
        lost = [runs.lose_run(session, run.id, message) for run in running if tuple(run) in silent]
        return [job_id for job_id in lost if job_id is not None]

    def _unchanged_for_a_lease(self, seen: list[tuple[object, ...]]) -> set[tuple[object, ...]]:
        now = self._clock()
        if now - self._last_sweep > self._lease / 2:
            # Nobody looked for a while, so nobody knows: perhaps the workers could not say that they live.
            self._first_seen.clear()
        self._last_sweep = now
        self._first_seen = {key: self._first_seen.get(key, now) for key in seen}
        return {key for key, since in self._first_seen.items() if now - since >= self._lease}
