"""Schedules, the device time that they spent, and the measurements that their next run is planned by."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from warpwatch.contract.spec import JobSpec
from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError
from warpwatch.db.models import ScheduleRecord
from warpwatch.db.reads.query import PRIMARY_METRIC, Page, fetch, fetch_one, fetch_page


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """kind: suite | rerun | backfill.

    cron: when, in UTC. request: operators, suite, device and what else a submission says.
    """

    id: int
    repository: str
    name: str
    kind: str
    cron: str
    request: dict[str, Any]
    budget_minutes: int
    spent_minutes: float
    """Device minutes that its jobs took in the last 24 hours."""
    is_enabled: bool
    last_at: datetime | None
    next_at: datetime | None
    message: str
    """Result of the last scheduled run, or the reason why the schedule did nothing."""
    submission_id: int | None
    """The newest submission it made."""
    created_at: datetime


COST_JOBS = 5000
"""Jobs back that tell what a job takes."""
READINGS = 20
"""Newest points of a series that tell how much it differs between runs."""

# Running jobs have spent what they took so far; of one that began earlier only what falls into the day counts.
_SCHEDULES = """
WITH spent AS (
    SELECT submissions.schedule_id,
           sum(extract(epoch FROM coalesce(runs.finished_at, :now) - greatest(runs.started_at,
                :now - interval '1 day'))) / 60 AS minutes
    FROM runs JOIN jobs ON jobs.id = runs.job_id JOIN submissions ON submissions.id = jobs.submission_id
    WHERE submissions.schedule_id IS NOT NULL AND runs.started_at <= :now
      AND (runs.finished_at > :now - interval '1 day' OR runs.state = 'running')
    GROUP BY submissions.schedule_id
)
SELECT schedules.id, repositories.name AS repository, schedules.name, kind, cron, request, budget_minutes,
       coalesce(spent.minutes, 0)::float AS spent_minutes, is_enabled, last_at, next_at, message,
       (SELECT max(id) FROM submissions WHERE schedule_id = schedules.id) AS submission_id, schedules.created_at
FROM schedules JOIN repositories ON repositories.id = schedules.repository_id LEFT JOIN spent
     ON spent.schedule_id = schedules.id
"""


def list_schedules(
    session: Session, now: datetime, repository_id: int | None = None, before: int | None = None, limit: int = 50
) -> Page[ScheduleRow]:
    """Schedules, newest first; `before` is the id of the last one of the page before."""
    sql = f"""
    {_SCHEDULES}
    WHERE (CAST(:repository_id AS bigint) IS NULL OR repository_id = :repository_id)
      AND (CAST(:before AS bigint) IS NULL OR schedules.id < :before)
    ORDER BY schedules.id DESC LIMIT :limit
    """
    return fetch_page(session, ScheduleRow, sql, limit, now=now, repository_id=repository_id, before=before)


def read_schedule(session: Session, schedule_id: int, now: datetime) -> ScheduleRow | None:
    return fetch_one(session, ScheduleRow, _SCHEDULES + "WHERE schedules.id = :id", now=now, id=schedule_id)


def list_due(session: Session, now: datetime) -> list[int]:
    """Ids of enabled schedules whose time has come, the longest waiting first."""
    sql = "SELECT id FROM schedules WHERE is_enabled AND next_at <= :now ORDER BY next_at, id"
    return list(session.execute(text(sql), {"now": now}).scalars())


@dataclass(frozen=True, slots=True)
class JobCost:
    """Usual time of jobs of one kind; repository_id, operator and suite are None in the median of all jobs."""

    kind: str
    device_id: int
    repository_id: int | None
    operator: str | None
    suite: str | None
    seconds: float


def read_costs(session: Session) -> list[JobCost]:
    """The median time of recent jobs by kind and device, of all operators together and of each operator and suite."""
    sql = f"""
    SELECT recent.kind, recent.device_id, operators.repository_id, operators.name AS operator,
           recent.spec ->> 'suite' AS suite,
           (percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch
                FROM recent.finished_at - recent.started_at)))::float AS seconds
    FROM (SELECT * FROM jobs WHERE state = 'done' AND attempt > 0 ORDER BY id DESC LIMIT {COST_JOBS}) AS recent
    JOIN operators ON operators.id = recent.operator_id
    WHERE recent.started_at IS NOT NULL AND recent.finished_at IS NOT NULL
    GROUP BY GROUPING SETS ((recent.kind, recent.device_id), (recent.kind, recent.device_id, operators.repository_id,
         operators.name, recent.spec ->> 'suite'))
    """
    return fetch(session, JobCost, sql)


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A job of a schedule that has not ended; elapsed_seconds is 0 while it waits."""

    kind: str
    device_id: int
    operator: str
    suite: str | None
    elapsed_seconds: float


def list_open(session: Session, schedule_id: int, now: datetime) -> list[OpenJob]:
    """The queued and running jobs of a schedule, which its budget still has to pay for."""
    sql = """
    SELECT jobs.kind, jobs.device_id, operators.name AS operator, jobs.spec ->> 'suite' AS suite,
           CASE WHEN jobs.state = 'running' THEN greatest(extract(epoch FROM :now - jobs.started_at), 0)
                ELSE 0 END::float AS elapsed_seconds
    FROM submissions JOIN jobs ON jobs.submission_id = submissions.id JOIN operators ON operators.id = jobs.operator_id
    WHERE submissions.schedule_id = :id AND jobs.state IN ('queued', 'running')
    """
    return fetch(session, OpenJob, sql, id=schedule_id, now=now)


@dataclass(frozen=True, slots=True)
class RequestedJob:
    """A job at a commit. environment_id: where it was measured; None while it was not, or was left out as unchanged.
    definitions_sha: the version of the definitions that it measures.
    """

    sha: str
    operator: str
    device_id: int
    kind: str
    state: str
    spec: JobSpec
    environment_id: int | None
    definitions_sha: str | None = None


def list_requested(session: Session, repository_id: int, shas: list[str], kinds: list[str]) -> list[RequestedJob]:
    """Every job of these kinds at these commits, oldest first."""
    sql = """
    SELECT commits.sha, operators.name AS operator, jobs.device_id, jobs.kind, jobs.state, jobs.spec - 'known' AS spec,
           (SELECT environment_id FROM runs WHERE runs.job_id = jobs.id AND runs.state = 'done'
            ORDER BY runs.id DESC LIMIT 1) AS environment_id, jobs.definitions_sha
    FROM commits JOIN jobs ON jobs.commit_id = commits.id JOIN operators ON operators.id = jobs.operator_id
    WHERE commits.repository_id = :repository_id AND commits.sha = ANY(:shas) AND jobs.kind = ANY(:kinds)
    ORDER BY jobs.id
    """
    return fetch(session, RequestedJob, sql, repository_id=repository_id, shas=shas, kinds=kinds)


@dataclass(frozen=True, slots=True)
class SeriesReading:
    """One of the newest points of a series in the metric that verdicts are made from."""

    series_id: int
    operator: str
    device_id: int
    device_kind: str
    ordinal: int
    commit_id: int
    environment_id: int
    median_ns: float
    low_ns: float
    high_ns: float


def list_readings(session: Session, repository_id: int) -> list[SeriesReading]:
    """The newest points of every series of a repository, each series in order of history."""
    sql = f"""
    SELECT series.id AS series_id, operators.name AS operator, series.device_id, device.kind AS device_kind,
           newest.ordinal, newest.commit_id, newest.environment_id, newest.median_ns, newest.low_ns, newest.high_ns
    FROM series JOIN operators ON operators.id = series.operator_id JOIN devices AS device
         ON device.id = series.device_id
    CROSS JOIN LATERAL (SELECT * FROM points WHERE series_id = series.id ORDER BY ordinal DESC,
         id DESC LIMIT {READINGS}) AS newest
    WHERE operators.repository_id = :repository_id AND series.metric = {PRIMARY_METRIC}
    ORDER BY series.id, newest.ordinal, newest.id
    """
    return fetch(session, SeriesReading, sql, repository_id=repository_id)


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """See db.models.Schedule; next_at is None for one that is not enabled."""

    repository_id: int
    name: str
    kind: str
    cron: str
    request: dict[str, Any]
    budget_minutes: int
    next_at: datetime | None


def create_schedule(s: Session, new: NewSchedule) -> int | None:
    """The id of the schedule; None when its repository has one of that name."""
    row = {
        "repository_id": new.repository_id,
        "name": new.name,
        "kind": new.kind,
        "cron": new.cron,
        "request": new.request,
        "budget_minutes": new.budget_minutes,
        "is_enabled": new.next_at is not None,
        "next_at": new.next_at,
    }
    statement = upsert(ScheduleRecord).values(row).on_conflict_do_nothing(index_elements=["repository_id", "name"])
    return s.scalar(statement.returning(ScheduleRecord.id))


def change_schedule(
    s: Session, schedule_id: int, *, cron: str, request: dict[str, Any], budget_minutes: int, next_at: datetime | None
) -> None:
    """Replaces what may be changed; without `next_at` it is disabled. NotFoundError when there is no such schedule."""
    values = {
        "cron": cron,
        "request": request,
        "budget_minutes": budget_minutes,
        "next_at": next_at,
        "is_enabled": next_at is not None,
    }
    changed = update(ScheduleRecord).where(ScheduleRecord.id == schedule_id).values(values)
    if s.scalar(changed.returning(ScheduleRecord.id)) is None:
        raise _unknown(schedule_id)


def remove_schedule(s: Session, schedule_id: int) -> None:
    """Removes a schedule and keeps its submissions and waiting jobs. NotFoundError when there is no such schedule."""
    if s.scalar(delete(ScheduleRecord).where(ScheduleRecord.id == schedule_id).returning(ScheduleRecord.id)) is None:
        raise _unknown(schedule_id)


def lock_turn(s: Session, schedule_id: int, last_at: datetime | None, next_at: datetime | None) -> bool:
    """Whether the schedule is still as it was read, so that the turn planned for it may be taken; it stays locked until
    the end.

    Another server that took the same turn moved both moments in the transaction in which it made the jobs.
    """
    unmoved = (
        ScheduleRecord.last_at.is_not_distinct_from(last_at),
        ScheduleRecord.next_at.is_not_distinct_from(next_at),
    )
    return (
        s.scalar(select(ScheduleRecord.id).where(ScheduleRecord.id == schedule_id, *unmoved).with_for_update())
        is not None
    )


def end_turn(s: Session, schedule_id: int, now: datetime, next_at: datetime | None, message: str) -> None:
    """Says how a turn went and when the next one is due."""
    values = {"last_at": func.greatest(now, ScheduleRecord.last_at), "next_at": next_at, "message": storable(message)}
    s.execute(update(ScheduleRecord).where(ScheduleRecord.id == schedule_id).values(values))


def _unknown(schedule_id: int) -> NotFoundError:
    return NotFoundError(f"there is no schedule {schedule_id}")
