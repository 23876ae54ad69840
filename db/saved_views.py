"""Writes saved views."""

from __future__ import annotations

from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from warpwatch.db.errors import NotFoundError
from warpwatch.db.models import SavedViewRecord


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
