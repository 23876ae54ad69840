"""Writes schedules: what is to be measured without anybody asking, and how each turn went."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError
from warpwatch.db.models import ScheduleRecord


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
    """What it asked for stays, its waiting jobs too. NotFoundError when there is no such schedule."""
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
