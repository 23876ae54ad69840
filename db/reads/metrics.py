"""Reads what /metrics exports: queues, devices, results and notifications of the last hour, for all servers alike."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from warpwatch.db.reads.query import fetch, fetch_scalar

HOUR_SECONDS = 3600.0
DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Jobs of one kind that wait for a device or run on it. oldest_seconds: how long the oldest has been able to run,
    which is 0 for one that may not run yet."""

    device_key: str
    kind: str
    state: str
    jobs: int
    oldest_seconds: float


def list_queue_depths(session: Session) -> list[QueueDepth]:
    """Open jobs by device, kind and state."""
    sql = """
    SELECT devices.key AS device_key, jobs.kind, jobs.state, count(*) AS jobs,
           greatest(max(CAST(extract(epoch FROM now() - greatest(jobs.created_at, not_before)) AS float)), 0)
           AS oldest_seconds
    FROM jobs JOIN devices ON devices.id = jobs.device_id
    WHERE state IN ('queued', 'running') GROUP BY devices.key, jobs.kind, jobs.state
    ORDER BY devices.key, jobs.kind, jobs.state
    """
    return fetch(session, QueueDepth, sql)


@dataclass(frozen=True, slots=True)
class WorkerCount:
    """Workers of a device. state: alive | paused | silent."""

    device_key: str
    state: str
    workers: int


def list_worker_counts(session: Session, lease_seconds: float) -> list[WorkerCount]:
    """Workers that have not stopped, by device and state; silent ones of the last day."""
    sql = """
    SELECT devices.key AS device_key, state, count(*) AS workers
    FROM devices CROSS JOIN LATERAL (
        SELECT CASE WHEN heartbeat_at <= now() - make_interval(secs => :lease) THEN 'silent'
                    WHEN paused_until > now() THEN 'paused' ELSE 'alive' END AS state
        FROM workers WHERE device_id = devices.id AND stopped_at IS NULL
          AND heartbeat_at > now() - make_interval(secs => :day)
    ) AS present GROUP BY devices.key, state ORDER BY devices.key, state
    """
    return fetch(session, WorkerCount, sql, lease=lease_seconds, day=DAY_SECONDS)


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """How a device was used in the last hour. busy_share: of the time that its workers were there, None without any.

    claim_median_seconds, claim_p99_seconds: how long jobs waited for their first run after they could run, of runs that
    ended in the last hour or have not; None where there are none.
    """

    device_key: str
    busy_share: float | None
    claim_median_seconds: float | None
    claim_p99_seconds: float | None


_RECENT_RUNS = """
(SELECT id, job_id, attempt, state, statuses, started_at, finished_at FROM runs WHERE state = 'running'
 UNION ALL
 SELECT id, job_id, attempt, state, statuses, started_at, finished_at FROM runs
 WHERE finished_at > now() - make_interval(secs => :hour))
"""


def list_device_uses(session: Session) -> list[DeviceUse]:
    """Every device with a worker or a run in the last hour, by key."""
    sql = f"""
    SELECT devices.key AS device_key,
           CASE WHEN there.seconds > 0 THEN least(coalesce(used.seconds, 0) / there.seconds, 1) END AS busy_share,
           used.waits[1] AS claim_median_seconds, used.waits[2] AS claim_p99_seconds
    FROM devices
    LEFT JOIN (
        SELECT jobs.device_id,
               CAST(sum(extract(epoch FROM coalesce(recent.finished_at, now())
                   - greatest(recent.started_at, now() - make_interval(secs => :hour)))) AS float) AS seconds,
               percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (
                   ORDER BY CAST(extract(epoch FROM recent.started_at - jobs.created_at) AS float))
                   FILTER (WHERE recent.attempt = 1) AS waits
        FROM {_RECENT_RUNS} AS recent JOIN jobs ON jobs.id = recent.job_id GROUP BY jobs.device_id
    ) AS used ON used.device_id = devices.id
    CROSS JOIN LATERAL (
        SELECT CAST(sum(extract(epoch FROM coalesce(stopped_at, heartbeat_at)
                   - greatest(started_at, now() - make_interval(secs => :hour)))) AS float) AS seconds
        FROM workers WHERE device_id = devices.id
          AND coalesce(stopped_at, heartbeat_at) > now() - make_interval(secs => :hour)
    ) AS there
    WHERE used.device_id IS NOT NULL OR there.seconds IS NOT NULL ORDER BY devices.key
    """
    return fetch(session, DeviceUse, sql, hour=HOUR_SECONDS)


@dataclass(frozen=True, slots=True)
class RunCount:
    """Runs that ended in the last hour. state: done | failed | lost | …"""

    device_key: str
    kind: str
    state: str
    runs: int


def list_run_counts(session: Session) -> list[RunCount]:
    """Runs of the last hour by device, kind and state."""
    sql = """
    SELECT devices.key AS device_key, jobs.kind, runs.state, count(*) AS runs
    FROM runs JOIN jobs ON jobs.id = runs.job_id JOIN devices ON devices.id = jobs.device_id
    WHERE runs.finished_at > now() - make_interval(secs => :hour)
    GROUP BY devices.key, jobs.kind, runs.state ORDER BY devices.key, jobs.kind, runs.state
    """
    return fetch(session, RunCount, sql, hour=HOUR_SECONDS)


@dataclass(frozen=True, slots=True)
class ResultCount:
    """Results of runs that ended in the last hour."""

    device_key: str
    kind: str
    status: str
    results: int


def list_result_counts(session: Session) -> list[ResultCount]:
    """Results of the last hour by device, kind and status, of runs that the server counted; see db.tallies."""
    sql = """
    SELECT devices.key AS device_key, jobs.kind, status.key AS status, CAST(sum(status.value::int) AS int) AS results
    FROM runs JOIN jobs ON jobs.id = runs.job_id JOIN devices ON devices.id = jobs.device_id
    CROSS JOIN LATERAL jsonb_each_text(runs.statuses) AS status
    WHERE runs.finished_at > now() - make_interval(secs => :hour)
    GROUP BY devices.key, jobs.kind, status.key ORDER BY devices.key, jobs.kind, status.key
    """
    return fetch(session, ResultCount, sql, hour=HOUR_SECONDS)


@dataclass(frozen=True, slots=True)
class NotificationCount:
    """Messages to other systems. outcome: waiting | retried, which failed before and wait | given_up, in the last
    day."""

    channel: str
    outcome: str
    messages: int


def list_notification_counts(session: Session) -> list[NotificationCount]:
    """Commit statuses and messages of channels and to forges by outcome. What a later one replaced is none that
    failed."""
    sql = """
    SELECT 'status' AS channel, CASE WHEN attempts = 0 THEN 'waiting' ELSE 'retried' END AS outcome,
           count(*) AS messages
    FROM callbacks WHERE sent_at IS NULL AND given_up_at IS NULL GROUP BY 2
    UNION ALL
    SELECT 'status', 'given_up', count(*) FROM callbacks
    WHERE given_up_at > now() - make_interval(secs => :day)
      AND NOT EXISTS (SELECT FROM callbacks AS later WHERE later.submission_id = callbacks.submission_id
                      AND later.id > callbacks.id)
    UNION ALL
    SELECT service, CASE WHEN attempts = 0 THEN 'waiting' ELSE 'retried' END, count(*)
    FROM deliveries JOIN channels ON channels.id = channel_id
    WHERE sent_at IS NULL AND given_up_at IS NULL AND covered_by_id IS NULL GROUP BY 1, 2
    UNION ALL
    SELECT service, 'given_up', count(*) FROM deliveries JOIN channels ON channels.id = channel_id
    WHERE given_up_at > now() - make_interval(secs => :day) GROUP BY 1
    UNION ALL
    SELECT forge, CASE WHEN attempts = 0 THEN 'waiting' ELSE 'retried' END, count(*)
    FROM forge_messages JOIN forge_links USING (repository_id)
    WHERE sent_at IS NULL AND given_up_at IS NULL GROUP BY 1, 2
    UNION ALL
    SELECT forge, 'given_up', count(*) FROM forge_messages AS message JOIN forge_links USING (repository_id)
    WHERE given_up_at > now() - make_interval(secs => :day)
      AND NOT EXISTS (SELECT FROM forge_messages AS later WHERE later.repository_id = message.repository_id
                      AND later.subject = message.subject AND later.id > message.id) GROUP BY 1
    """
    return fetch(session, NotificationCount, sql, day=DAY_SECONDS)


def read_database_bytes(session: Session) -> int:
    """Size of the database on disk."""
    return int(fetch_scalar(session, "SELECT pg_database_size(current_database())"))
