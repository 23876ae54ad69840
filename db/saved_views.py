"""Saved views: links with a name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ForeignKey, Index, UniqueConstraint, delete
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Mapped, Session, mapped_column

from warpwatch.db.errors import NotFoundError
from warpwatch.db.models.base import Base, created
from warpwatch.db.reads.query import Page, fetch_one, fetch_page


class SavedViewRecord(Base):
    """A link to one of our pages with all its filters, under a name."""

    __tablename__ = "saved_views"
    __table_args__ = (UniqueConstraint("repository_id", "name"), Index(None, "repository_id", "id"))
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    name: Mapped[str]
    path: Mapped[str]
    """Path and query of the page."""
    created_at: Mapped[datetime] = created()


_VIEWS = """
SELECT saved_views.id, repositories.name AS repository, saved_views.name, path, saved_views.created_at
FROM saved_views JOIN repositories ON repositories.id = saved_views.repository_id
"""


@dataclass(frozen=True, slots=True)
class SavedView:
    """A link with a name. path: path and query of a page."""

    id: int
    repository: str
    name: str
    path: str
    created_at: datetime


def list_saved_views(
    session: Session, repository_id: int, before: int | None = None, limit: int = 50
) -> Page[SavedView]:
    """Views of a repository, newest first; `before` is the id of the last one of the page before."""
    sql = f"""
    {_VIEWS} WHERE saved_views.repository_id = :repository_id
      AND (CAST(:before AS bigint) IS NULL OR saved_views.id < :before)
    ORDER BY saved_views.id DESC LIMIT :limit
    """
    return fetch_page(session, SavedView, sql, limit, repository_id=repository_id, before=before)


def read_saved_view(session: Session, view_id: int) -> SavedView | None:
    return fetch_one(session, SavedView, _VIEWS + "WHERE saved_views.id = :id", id=view_id)


def save_view(s: Session, repository_id: int, name: str, path: str) -> int | None:
    """The id of the view; None when its repository has one of that name."""
    row = {"repository_id": repository_id, "name": name, "path": path}
    statement = upsert(SavedViewRecord).values(row).on_conflict_do_nothing(index_elements=["repository_id", "name"])
    return s.scalar(statement.returning(SavedViewRecord.id))


def remove_view(s: Session, view_id: int) -> None:
    """NotFoundError when there is no such view."""
    removed = delete(SavedViewRecord).where(SavedViewRecord.id == view_id)
    if s.scalar(removed.returning(SavedViewRecord.id)) is None:
        raise NotFoundError(f"there is no saved view {view_id}")
