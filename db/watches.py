"""Watches: operators and branches that somebody wants to be told of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ForeignKey, Index, UniqueConstraint, delete, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, Session, mapped_column

from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError
from warpwatch.db.models.base import Base, created
from warpwatch.db.reads.query import Page, fetch_one, fetch_page


class WatchRecord(Base):
    """An operator, or one of its cases, that a person keeps an eye on. case_id: None stands for all cases."""

    __tablename__ = "watches"
    __table_args__ = (
        UniqueConstraint("operator_id", "person", "case_id", postgresql_nulls_not_distinct=True),
        Index(None, "case_id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    person: Mapped[str]
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    case_id: Mapped[int | None] = mapped_column(ForeignKey("cases.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = created()


MOST_WATCHERS = 200
"""Names to choose from; further ones can be given in the address."""


@dataclass(frozen=True, slots=True)
class WatchRow:
    """An operator that a person watches. case: only this one of its cases; None for all."""

    id: int
    repository: str
    person: str
    operator: str
    case: str | None
    created_at: datetime


_WATCHES = """
SELECT watches.id, repositories.name AS repository, watches.person, operators.name AS operator, cases.key AS case,
       watches.created_at
FROM watches JOIN operators ON operators.id = watches.operator_id
JOIN repositories ON repositories.id = operators.repository_id LEFT JOIN cases ON cases.id = watches.case_id
"""


def list_watches(
    session: Session,
    repository_id: int,
    person: str | None = None,
    operator: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> Page[WatchRow]:
    """The watches of a repository, newest first; `before` is the id of the last watch of the page before."""
    sql = f"""
    {_WATCHES} WHERE operators.repository_id = :repository_id
      AND (CAST(:person AS text) IS NULL OR watches.person = :person)
      AND (CAST(:operator AS text) IS NULL OR operators.name = :operator)
      AND (CAST(:before AS bigint) IS NULL OR watches.id < :before)
    ORDER BY watches.id DESC LIMIT :limit
    """
    asked = {"repository_id": repository_id, "person": person, "operator": operator, "before": before}
    return fetch_page(session, WatchRow, sql, limit, **asked)


def list_watchers(session: Session, repository_id: int) -> list[str]:
    """The people who watch something in a repository, by name; at most MOST_WATCHERS."""
    sql = """
    SELECT DISTINCT person FROM watches JOIN operators ON operators.id = watches.operator_id
    WHERE operators.repository_id = :repository_id ORDER BY person LIMIT :limit
    """
    return list(session.scalars(text(sql), {"repository_id": repository_id, "limit": MOST_WATCHERS}))


def read_watch(session: Session, watch_id: int) -> WatchRow | None:
    return fetch_one(session, WatchRow, _WATCHES + "WHERE watches.id = :id", id=watch_id)


def is_watched(operator_id: str, case_id: str) -> str:
    """SQL: whether `:watcher` watches a case, or all cases of its operator; true for everything without a watcher."""
    return f"""
    (CAST(:watcher AS text) IS NULL OR EXISTS (
        SELECT FROM watches WHERE watches.operator_id = {operator_id} AND watches.person = :watcher
          AND (watches.case_id IS NULL OR watches.case_id = {case_id})))
    """


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
