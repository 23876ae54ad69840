"""Gives back the jobs of workers that died."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.orm import Session

from warpwatch.contract.words import RunState
from warpwatch.db.models import RunRecord
from warpwatch.db.runs import lose_run
from warpwatch.db.worker_keys import forget_ended_chunks


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
        lost = [lose_run(session, run.id, message) for run in running if tuple(run) in silent]
        return [job_id for job_id in lost if job_id is not None]

    def _unchanged_for_a_lease(self, seen: list[tuple[object, ...]]) -> set[tuple[object, ...]]:
        now = self._clock()
        if now - self._last_sweep > self._lease / 2:
            # Nobody looked for a while, so nobody knows: perhaps the workers could not say that they live.
            self._first_seen.clear()
        self._last_sweep = now
        self._first_seen = {key: self._first_seen.get(key, now) for key in seen}
        return {key for key, since in self._first_seen.items() if now - since >= self._lease}
