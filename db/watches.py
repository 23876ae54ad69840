"""Writes what people watch."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError
from warpwatch.db.models import WatchRecord


def watch(s: Session, person: str, operator_id: int, case_id: int | None = None) -> int:
    """The id of the watch, which is the old one where the person watches this already."""
    row = {"person": storable(person), "operator_id": operator_id, "case_id": case_id}
    statement = insert(WatchRecord).values(row).on_conflict_do_nothing().returning(WatchRecord.id)
    return (
        s.scalar(statement)
        or s.scalars(
            select(WatchRecord.id).where(
                WatchRecord.person == row["person"],
                WatchRecord.operator_id == operator_id,
                WatchRecord.case_id.is_not_distinct_from(case_id),
            )
        ).one()
    )


def unwatch(s: Session, watch_id: int) -> None:
    """NotFoundError when there is no such watch."""
    removed = delete(WatchRecord).where(WatchRecord.id == watch_id)
    if s.scalar(removed.returning(WatchRecord.id)) is None:
        raise NotFoundError(f"there is no watch {watch_id}")
