"""Finds what keeps numbers from coming: devices nobody works for, workers that hang or are unfit, and histories that
ended.

Nothing is stored: an alarm is there as long as its cause is.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from warpwatch.db.reads.missing import list_missing
from warpwatch.db.reads.query import Session, fetch
from warpwatch.db.reads.rows import AlarmRow, alarm

UNFIT = " is not fit to be measured on: "
"""What a run says that found its device unfit; held equal to the worker's words by a test."""
UNFIT_HOURS = 24
_ORDER = ("stale_device", "stale_worker", "unfit", "missing", "vanished")
PACE_RUNS = 50
"""Newest runs of a worker that tell how long its jobs take."""
PACE_FACTOR = 5.0
PACE_LEAST_SECONDS = 600.0
"""A worker is late when it has given no result for so many times what nineteen of twenty of its jobs take, and never
earlier."""


def list_alarms(
    session: Session, now: datetime, lease_seconds: float, repository_id: int | None = None
) -> list[AlarmRow]:
    """Every alarm of the service and of one repository, or of all: first what stops everything, then what is missing."""
    found = [
        *_stale_devices(session, now, lease_seconds),
        *_stale_workers(session, now, lease_seconds),
        *_unfit(session, now, lease_seconds),
        *list_missing(session, now, repository_id),
    ]
    return sorted(
        found, key=lambda row: (_ORDER.index(row.kind), row.repository, row.operator, row.device_key, row.variant)
    )


class _Waiting(NamedTuple):
    device_key: str
    kind: str
    queued: int
    oldest_at: datetime
    last_heard_at: datetime | None
    job_id: int


def _stale_devices(session: Session, now: datetime, lease_seconds: float) -> Iterator[AlarmRow]:
    """Jobs wait and nobody came for them for a lease."""
    sql = """
    SELECT devices.key AS device_key, devices.kind, waiting.queued, waiting.oldest_at, heard.last_heard_at,
         waiting.job_id
    FROM (SELECT device_id, count(*) AS queued, min(created_at) AS oldest_at, min(id) AS job_id
          FROM jobs WHERE state = 'queued' GROUP BY device_id) AS waiting
    JOIN devices ON devices.id = waiting.device_id
    CROSS JOIN LATERAL (SELECT max(heartbeat_at) AS last_heard_at FROM workers WHERE device_id = devices.id) AS heard
    WHERE greatest(waiting.oldest_at, heard.last_heard_at) <= :now - make_interval(secs => :lease)
    """
    for row in fetch(session, _Waiting, sql, now=now, lease=lease_seconds):
        jobs = "1 job waits" if row.queued == 1 else f"{row.queued} jobs wait"
        device = "cuda:0" if row.kind == "cuda" else "cpu"
        since = max(row.oldest_at, row.last_heard_at or row.oldest_at)
        message = f"{jobs} for {row.device_key}, and no worker for it is alive"
        remedy = f"start one there with `warpwatch worker --device {device}`, or cancel what waits"
        yield alarm("stale_device", since, message, remedy, device_key=row.device_key, job_id=row.job_id)


class _Late(NamedTuple):
    worker: str
    device_key: str
    since: datetime
    silent_seconds: float
    pace_seconds: float
    job_id: int | None


def _stale_workers(session: Session, now: datetime, lease_seconds: float) -> Iterator[AlarmRow]:
    """Workers that say they live and have work, and gave no result for much longer than their jobs take."""
    sql = f"""
    SELECT worker, device_key, since, extract(epoch FROM :now - since)::float AS silent_seconds, pace_seconds::float,
         job_id
    FROM (
        SELECT workers.name AS worker, devices.key AS device_key, pace.pace_seconds, work.job_id,
               greatest(pace.last_at, workers.started_at, work.oldest_at) AS since
        FROM workers JOIN devices ON devices.id = workers.device_id
        CROSS JOIN LATERAL (
            SELECT min(created_at) AS oldest_at,
                   (SELECT max(job_id) FROM runs WHERE worker_id = workers.id AND state = 'running') AS job_id
            FROM jobs WHERE device_id = workers.device_id AND state IN ('queued', 'running')
        ) AS work
        CROSS JOIN LATERAL (
            SELECT max(finished_at) AS last_at,
                   percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch
                        FROM finished_at - started_at)) AS pace_seconds
            FROM (SELECT started_at, finished_at FROM runs WHERE worker_id = workers.id AND state = 'done'
                  ORDER BY id DESC LIMIT {PACE_RUNS}) AS newest
        ) AS pace
        WHERE workers.stopped_at IS NULL AND workers.heartbeat_at > :now - make_interval(secs => :lease)
          AND work.oldest_at IS NOT NULL AND pace.last_at IS NOT NULL
    ) AS busy
    WHERE extract(epoch FROM :now - since) > greatest({PACE_FACTOR} * pace_seconds, {PACE_LEAST_SECONDS})
    """
    for row in fetch(session, _Late, sql, now=now, lease=lease_seconds):
        at = f"it is at job {row.job_id}" if row.job_id else "it takes none of the jobs that wait"
        message = (
            f"worker {row.worker} gave no result for {row.silent_seconds / 60:.0f} minutes; most of its jobs take "
            f"{_span(row.pace_seconds)}, and {at}"
        )
        remedy = "look at the job's log; cancel the job, or start the worker again"
        yield alarm("stale_worker", row.since, message, remedy, device_key=row.device_key, job_id=row.job_id)


def _span(seconds: float) -> str:
    return f"up to {seconds / 60:.0f} minutes" if seconds >= 90 else f"up to {max(seconds, 1):.0f} s"


class _Unfit(NamedTuple):
    device_key: str
    since: datetime
    trouble: str
    failed: int
    job_id: int | None


def _unfit(session: Session, now: datetime, lease_seconds: float) -> Iterator[AlarmRow]:
    """Devices that a worker finds unfit now, and those for whose state jobs failed in the last day and none was
    measured since."""
    sql = f"""
    SELECT devices.key AS device_key, least(min(failing.first_at), min(worker.heartbeat_at)) AS since,
           coalesce(min(worker.trouble), min(failing.message)) AS trouble, coalesce(min(failing.failed), 0) AS failed,
           min(failing.job_id) AS job_id
    FROM devices
    LEFT JOIN LATERAL (
        SELECT heartbeat_at, facts ->> 'trouble' AS trouble FROM workers
        WHERE device_id = devices.id AND stopped_at IS NULL AND heartbeat_at > :now - make_interval(secs => :lease)
          AND coalesce(facts ->> 'trouble', '') <> ''
    ) AS worker ON true
    LEFT JOIN (
        SELECT jobs.device_id, min(runs.finished_at) AS first_at,
             count(DISTINCT jobs.id) FILTER (WHERE jobs.state = 'failed') AS failed,
               max(jobs.id) AS job_id, max(runs.message) AS message, max(runs.finished_at) AS last_at
        FROM runs JOIN jobs ON jobs.id = runs.job_id
        WHERE runs.finished_at > :now - interval '{UNFIT_HOURS} hours' AND runs.state = 'failed'
             AND strpos(runs.message, :unfit) > 0
        GROUP BY jobs.device_id
    ) AS failing ON failing.device_id = devices.id
    WHERE worker.trouble IS NOT NULL OR failing.failed > 0 AND NOT EXISTS (
        SELECT FROM runs JOIN jobs ON jobs.id = runs.job_id
        WHERE runs.finished_at > failing.last_at AND runs.state = 'done' AND jobs.kind = 'bench'
             AND jobs.device_id = devices.id)
    GROUP BY devices.id, devices.key
    """
    for row in fetch(session, _Unfit, sql, now=now, lease=lease_seconds, unfit=UNFIT):
        jobs = (
            ""
            if not row.failed
            else "; 1 job failed for it"
            if row.failed == 1
            else f"; {row.failed} jobs failed for it"
        )
        remedy = "end what else uses the device or let it cool; then retry what failed"
        message = f"{row.device_key}: {row.trouble}{jobs}"
        yield alarm("unfit", row.since, message, remedy, device_key=row.device_key, job_id=row.job_id)
