"""Gives back the jobs of workers that died, and tickets that got lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from warpwatch.contract.words import RunState
from warpwatch.db.models import JobRecord, RunRecord
from warpwatch.db.queue import enqueue, withdraw
from warpwatch.db.result_chunks import forget_ended_chunks
from warpwatch.db.runs import lose_run

_LOST_TICKETS = text(
    """
    SELECT jobs.id, jobs.attempt, jobs.ticket FROM jobs LEFT JOIN procrastinate_jobs p ON p.id = jobs.ticket
    WHERE jobs.state = 'queued' AND p.status IS DISTINCT FROM 'todo' ORDER BY jobs.id
    """
)


class Reaper:
    """Declares a worker dead only after this object has itself seen the same heartbeat for a whole lease.

    So an outage of the database, a reaper that was itself paused, or clocks that differ between hosts cost nobody his
    job. Keep one per process and call `sweep` at least twice per lease; better five times.
    """

    def __init__(self, lease_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease = lease_seconds
        self._clock = clock
        self._first_seen: dict[Hashable, float] = {}
        self._last_sweep = clock()

    def sweep(self, s: Session) -> list[int]:
        """Ids of the jobs that were given back to the queue or, after their last attempt, failed."""
        running = s.execute(
            select(RunRecord.id, RunRecord.heartbeat_at).where(RunRecord.state == RunState.RUNNING)
        ).all()
        ticketless = s.execute(_LOST_TICKETS).all()
        unchanged = self._unchanged_for_a_lease([*map(tuple, running), *map(tuple, ticketless)])
        forget_ended_chunks(s)
        message = f"its worker was silent for {self._lease:g} s"
        lost = [lose_run(s, run.id, message) for run in running if tuple(run) in unchanged]
        lost += [self._new_ticket(s, job.id, job.ticket) for job in ticketless if tuple(job) in unchanged]
        return [job_id for job_id in lost if job_id is not None]

    def _unchanged_for_a_lease(self, seen: list[tuple[object, ...]]) -> set[Hashable]:
        now = self._clock()
        if now - self._last_sweep > self._lease / 2:
            # Nobody looked for a while, so nobody knows: perhaps the workers could not say that they live.
            self._first_seen.clear()
        self._last_sweep = now
        self._first_seen = {key: self._first_seen.get(key, now) for key in seen}
        return {key for key, since in self._first_seen.items() if now - since >= self._lease}

    def _new_ticket(self, s: Session, job_id: int, stale: int | None) -> int | None:
        """A worker took the ticket and died before it began the run: the job waits and nobody would come for it."""
        waiting = select(JobRecord.id).where(
            JobRecord.id == job_id, JobRecord.state == "queued", JobRecord.ticket.is_not_distinct_from(stale)
        )
        if s.scalar(waiting.with_for_update(skip_locked=True)) is None:
            return None
        enqueue(s, [job_id])
        withdraw(s, [stale])
        return job_id
