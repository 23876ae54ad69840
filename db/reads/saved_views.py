"""Reads saved views."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from warpwatch.db.reads.query import Page, Session, fetch_one, fetch_page

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
