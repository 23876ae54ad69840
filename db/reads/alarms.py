"""Finds devices without a worker, workers that give no results, and devices that are unfit to be measured on.

Nothing is stored: a fact is returned as long as its cause lasts. server.explanation.alarms writes the sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from warpwatch.contract.words import Reason
from warpwatch.db.reads.query import fetch

UNFIT_HOURS = 24
"""How long a job that failed because its device was unfit counts."""
PACE_RUNS = 50
"""Newest runs of a worker from which the usual duration of its jobs is taken."""
ELASTIC_SECONDS = 3600.0
"""How long jobs of an elastic device wait for a worker before that blocks measurement: clusters have queues too."""
PACE_FACTOR = 5.0
PACE_LEAST_SECONDS = 600.0
"""A worker is late when it has given no result for PACE_FACTOR times the 95th percentile of its jobs' durations, and
for at least PACE_LEAST_SECONDS."""


@dataclass(frozen=True, slots=True)
class StaleDevice:
    """A device for which jobs wait and that no living worker has. job_id: the oldest of them."""

    device_key: str
    device_kind: str
    queued: int
    oldest_at: datetime
    last_heard_at: datetime | None
    """Last heartbeat of any worker of the device."""
    job_id: int


def list_stale_devices(session: Session, now: datetime, lease_seconds: float) -> list[StaleDevice]:
    """Devices for which jobs have waited for a lease while no worker of the device was alive.

    Elastic devices have ELASTIC_SECONDS, which a scheduler may take to start one.
    """
    sql = """
    SELECT devices.key AS device_key, devices.kind AS device_kind, waiting.queued, waiting.oldest_at,
         heard.last_heard_at,
         waiting.job_id
    FROM (SELECT device_id, count(*) AS queued, min(created_at) AS oldest_at, min(id) AS job_id
          FROM jobs WHERE state = 'queued' GROUP BY device_id) AS waiting
    JOIN devices ON devices.id = waiting.device_id
    CROSS JOIN LATERAL (SELECT max(heartbeat_at) AS last_heard_at FROM workers WHERE device_id = devices.id) AS heard
    WHERE greatest(waiting.oldest_at, heard.last_heard_at)
          <= :now - make_interval(secs => CASE WHEN devices.is_elastic THEN :elastic ELSE :lease END)
    """
    return fetch(session, StaleDevice, sql, now=now, lease=lease_seconds, elastic=ELASTIC_SECONDS)


@dataclass(frozen=True, slots=True)
class StaleWorker:
    """A worker that is alive, has work, and has given no result for much longer than its jobs usually take.

    pace_seconds: 95th percentile of its newest runs. job_id: the job it is at; None where it takes none.
    """

    worker: str
    device_key: str
    since: datetime
    silent_seconds: float
    pace_seconds: float
    job_id: int | None


def list_stale_workers(session: Session, now: datetime, lease_seconds: float) -> list[StaleWorker]:
    """Workers that are alive, have work, and have given no result for much longer than their jobs usually take."""
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
    return fetch(session, StaleWorker, sql, now=now, lease=lease_seconds)


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """A physical device on which several living workers measure. since: when the second of them started."""

    device_key: str
    workers: list[str]
    since: datetime


def list_shared_devices(session: Session, now: datetime, lease_seconds: float) -> list[SharedDevice]:
    """Physical devices that several living workers have."""
    sql = """
    SELECT devices.key AS device_key, array_agg(workers.name ORDER BY workers.started_at, workers.id) AS workers,
           (array_agg(workers.started_at ORDER BY workers.started_at, workers.id))[2] AS since
    FROM workers JOIN devices ON devices.id = workers.device_id
    WHERE workers.stopped_at IS NULL AND workers.heartbeat_at > :now - make_interval(secs => :lease)
      AND facts ? 'physical'
    GROUP BY devices.id, devices.key, facts ->> 'physical' HAVING count(*) > 1
    """
    return fetch(session, SharedDevice, sql, now=now, lease=lease_seconds)


@dataclass(frozen=True, slots=True)
class PausedWorker:
    """A worker that takes no jobs for a while, because several in a row failed for a reason of its machine."""

    worker: str
    device_key: str
    since: datetime
    until: datetime
    reason: Reason
    job_id: int | None
    """Its newest job that failed."""


def list_paused_workers(session: Session, now: datetime, lease_seconds: float) -> list[PausedWorker]:
    """Workers that are alive and pause."""
    sql = """
    SELECT workers.name AS worker, devices.key AS device_key, coalesce(last.finished_at, paused_until) AS since,
           paused_until AS until, pause_reason AS reason, last.job_id
    FROM workers JOIN devices ON devices.id = workers.device_id
    LEFT JOIN LATERAL (SELECT job_id, finished_at FROM runs WHERE worker_id = workers.id AND state = 'failed'
                       ORDER BY id DESC LIMIT 1) AS last ON true
    WHERE stopped_at IS NULL AND heartbeat_at > :now - make_interval(secs => :lease) AND paused_until > :now
    """
    return fetch(session, PausedWorker, sql, now=now, lease=lease_seconds)


@dataclass(frozen=True, slots=True)
class UnfitDevice:
    """A device whose state keeps jobs from being measured. trouble: in the worker's words.

    failed: jobs that failed because of it. job_id: the newest of them.
    """

    device_key: str
    since: datetime
    trouble: str
    failed: int
    job_id: int | None


def list_unfit_devices(session: Session, now: datetime, lease_seconds: float) -> list[UnfitDevice]:
    """Devices that a worker finds unfit now, and those because of whose state jobs failed in the last day while none
    was measured since."""
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
             AND runs.reason = '{Reason.UNFIT_DEVICE}'
        GROUP BY jobs.device_id
    ) AS failing ON failing.device_id = devices.id
    WHERE worker.trouble IS NOT NULL OR failing.failed > 0 AND NOT EXISTS (
        SELECT FROM runs JOIN jobs ON jobs.id = runs.job_id
        WHERE runs.finished_at > failing.last_at AND runs.state = 'done' AND jobs.kind = 'bench'
             AND jobs.device_id = devices.id)
    GROUP BY devices.id, devices.key
    """
    return fetch(session, UnfitDevice, sql, now=now, lease=lease_seconds)
