"""Reads devices, workers and environments, and how the whole service fares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.reads.query import fetch, fetch_one


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """workers: how many are alive now. queued, running: jobs waiting for it and under way on it.

    is_elastic: a scheduler starts workers when jobs wait.
    """

    id: int
    key: str
    kind: str
    name: str
    workers: int
    queued: int
    running: int
    environments: int
    is_elastic: bool = False


@dataclass(frozen=True, slots=True)
class WorkerRow:
    id: int
    name: str
    device_key: str
    version: str
    started_at: datetime
    heartbeat_at: datetime
    state: str
    """alive | paused | silent | stopped."""
    job_id: int | None
    paused_until: datetime | None = None
    pause_reason: str | None = None
    """Why it takes no jobs: contract.words.Reason."""
    trouble: str = ""
    """Why its device was not fit to be measured on when it last tried; empty when it was."""
    isolation: str = ""
    """How far it shuts kernel code in: full | user | network | none."""
    missing_protections: list[str] = field(default_factory=list)
    """Protections against kernel code that the worker's host lacks."""


@dataclass(frozen=True, slots=True)
class EnvironmentView:
    id: int
    key: str
    device_key: str
    facts: dict[str, Any]
    peaks: dict[str, float] | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class HealthRow:
    """queued, running: jobs. workers: how many are alive."""

    queued: int
    running: int
    workers: int
    repositories: int
    database_bytes: int


LEASE_SECONDS = 15.0
"""How long a silent worker still counts as alive, unless the caller knows better."""

_WORKERS_ALIVE = """
(SELECT count(*) FROM workers WHERE device_id = devices.id AND stopped_at IS NULL
 AND heartbeat_at > now() - make_interval(secs => :lease))
"""


def list_device_names(session: Session) -> dict[str, str]:
    """The name of every device by its key."""
    return {row.key: row.name for row in session.execute(text("SELECT key, name FROM devices"))}


def list_toolchains(session: Session, device_ids: Sequence[int]) -> dict[int, set[str]]:
    """The names of the toolchains that the workers of each device offer, by id of the device. Devices whose workers
    were silent for a day, or do not say so, are left out."""
    sql = """
    SELECT device_id, coalesce(array_agg(DISTINCT offered.name) FILTER (WHERE offered.name IS NOT NULL), '{}')
    FROM workers LEFT JOIN LATERAL jsonb_array_elements_text(facts -> 'toolchains') AS offered(name) ON true
    WHERE device_id = ANY(:ids) AND jsonb_typeof(facts -> 'toolchains') = 'array' AND stopped_at IS NULL
      AND heartbeat_at > now() - interval '1 day' GROUP BY device_id
    """
    return {row[0]: set(row[1]) for row in session.execute(text(sql), {"ids": list(device_ids)})}


def list_devices(session: Session, lease_seconds: float = LEASE_SECONDS) -> list[DeviceRow]:
    """Every device that was ever measured on or had a worker, by key."""
    sql = f"""
    SELECT id, key, kind, name, {_WORKERS_ALIVE} AS workers,
           (SELECT count(*) FROM jobs WHERE device_id = devices.id AND state = 'queued') AS queued,
           (SELECT count(*) FROM jobs WHERE device_id = devices.id AND state = 'running') AS running,
           (SELECT count(*) FROM environments WHERE device_id = devices.id) AS environments,
           is_elastic
    FROM devices ORDER BY key
    """
    return fetch(session, DeviceRow, sql, lease=lease_seconds)


def find_device(session: Session, key: str, lease_seconds: float = LEASE_SECONDS) -> DeviceRow | None:
    return next((device for device in list_devices(session, lease_seconds) if device.key == key), None)


def list_workers(session: Session, lease_seconds: float = LEASE_SECONDS, limit: int = 200) -> list[WorkerRow]:
    """Workers, the living first, each with the job it is at."""
    sql = """
    SELECT workers.id, workers.name, devices.key AS device_key, version, workers.started_at, workers.heartbeat_at,
           CASE WHEN stopped_at IS NOT NULL THEN 'stopped'
                WHEN workers.heartbeat_at <= now() - make_interval(secs => :lease) THEN 'silent'
                WHEN paused_until > now() THEN 'paused'
                     ELSE 'alive' END AS state,
           paused_until, pause_reason,
           (SELECT max(job_id) FROM runs WHERE worker_id = workers.id AND state = 'running') AS job_id,
           coalesce(workers.facts ->> 'trouble', '') AS trouble,
           coalesce(workers.facts ->> 'isolation', '') AS isolation,
           coalesce(workers.facts -> 'missing_protections', '[]') AS missing_protections
    FROM workers JOIN devices ON devices.id = workers.device_id
    ORDER BY stopped_at IS NOT NULL, workers.heartbeat_at DESC, workers.id DESC LIMIT :limit
    """
    return fetch(session, WorkerRow, sql, lease=lease_seconds, limit=limit)


_ENVIRONMENTS = """
SELECT environments.id, environments.key, devices.key AS device_key, facts, peaks, environments.created_at
FROM environments JOIN devices ON devices.id = environments.device_id
"""


def find_environment(session: Session, environment_id: int) -> EnvironmentView | None:
    return fetch_one(session, EnvironmentView, _ENVIRONMENTS + "WHERE environments.id = :id", id=environment_id)


def list_environments(session: Session, device_id: int, limit: int = 50) -> list[EnvironmentView]:
    """Environments of one device, newest first."""
    sql = _ENVIRONMENTS + "WHERE device_id = :device_id ORDER BY environments.id DESC LIMIT :limit"
    return fetch(session, EnvironmentView, sql, device_id=device_id, limit=limit)


def read_health(session: Session, lease_seconds: float = LEASE_SECONDS) -> HealthRow:
    """Counts of jobs, live workers and repositories, and size of the database; cheap enough to query every second."""
    sql = """
    SELECT (SELECT count(*) FROM jobs WHERE state = 'queued') AS queued,
           (SELECT count(*) FROM jobs WHERE state = 'running') AS running,
           (SELECT count(*) FROM workers WHERE stopped_at IS NULL
             AND heartbeat_at > now() - make_interval(secs => :lease)) AS workers,
           (SELECT count(*) FROM repositories WHERE deleted_at IS NULL) AS repositories,
           pg_database_size(current_database()) AS database_bytes
    """
    health = fetch_one(session, HealthRow, sql, lease=lease_seconds)
    assert health is not None
    return health
