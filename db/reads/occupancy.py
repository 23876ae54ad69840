"""Reads when devices were busy and what waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from warpwatch.contract.activities import RunTimes
from warpwatch.contract.codec import from_json
from warpwatch.db.reads.query import fetch


@dataclass(frozen=True, slots=True)
class DeviceRun:
    """A run of a job on a device; finished_at is None while it runs."""

    job_id: int
    device_id: int
    kind: str
    operator: str
    commit_sha: str
    state: str
    suite: str | None
    started_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits for its device."""

    job_id: int
    device_id: int
    kind: str
    operator: str
    commit_sha: str
    suite: str | None


@dataclass(frozen=True, slots=True)
class TimedRun:
    """Times of a run that ended. seconds: from start to end. results: number of results of variants on cases."""

    device_id: int
    kind: str
    finished_at: datetime
    seconds: float
    results: int
    times: RunTimes


def list_device_runs(session: Session, since: datetime, limit: int = 600) -> list[DeviceRun]:
    """Runs that ended after `since` or have not ended, the newest first."""
    sql = """
    SELECT job_id, jobs.device_id, jobs.kind, operators.name AS operator, commits.sha AS commit_sha, runs.state,
           jobs.spec ->> 'suite' AS suite, runs.started_at, runs.finished_at
    FROM (
        SELECT job_id, state, started_at, finished_at FROM runs WHERE state = 'running'
        UNION ALL
        (SELECT job_id, state, started_at, finished_at FROM runs WHERE finished_at >= :since
         ORDER BY finished_at DESC LIMIT :limit)
    ) AS runs
    JOIN jobs ON jobs.id = runs.job_id
    JOIN operators ON operators.id = jobs.operator_id
    JOIN commits ON commits.id = jobs.commit_id
    ORDER BY runs.started_at DESC LIMIT :limit
    """
    return fetch(session, DeviceRun, sql, since=since, limit=limit)


def list_queued(session: Session, limit: int = 300) -> list[QueuedJob]:
    """Queued jobs in the order in which each device will take them, at most `limit` per device."""
    sql = """
    SELECT job_id, devices.id AS device_id, line.kind, operators.name AS operator, commits.sha AS commit_sha, suite
    FROM devices CROSS JOIN LATERAL (
        SELECT id AS job_id, kind, operator_id, commit_id, priority, spec ->> 'suite' AS suite
        FROM jobs WHERE device_id = devices.id AND state = 'queued' ORDER BY priority DESC, id LIMIT :limit
    ) AS line
    JOIN operators ON operators.id = line.operator_id
    JOIN commits ON commits.id = line.commit_id
    ORDER BY devices.id, line.priority DESC, line.job_id
    """
    return fetch(session, QueuedJob, sql, limit=limit)


def list_timed_runs(session: Session, since: datetime, limit: int = 1000) -> list[TimedRun]:
    """Runs that ended after `since` and were timed, the newest first."""
    sql = """
    SELECT jobs.device_id, jobs.kind, recent.finished_at, times,
           CAST(extract(epoch FROM recent.finished_at - recent.started_at) AS float) AS seconds,
           (SELECT count(*) FROM all_results WHERE run_id = recent.id) AS results
    FROM (SELECT * FROM runs WHERE finished_at >= :since ORDER BY finished_at DESC LIMIT :limit) AS recent
    JOIN jobs ON jobs.id = recent.job_id
    WHERE times IS NOT NULL ORDER BY recent.finished_at DESC
    """

    def row(times: dict[str, Any], **fields: Any) -> TimedRun:
        return TimedRun(times=from_json(RunTimes, times), **fields)

    return fetch(session, row, sql, since=since, limit=limit)
