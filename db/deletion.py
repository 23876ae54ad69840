"""Deletes a repository: at once for everybody who asks, and row by row in transactions that each take a moment."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.words import JobState
from warpwatch.db.errors import NotFoundError
from warpwatch.db.submissions import cancel_job

_OF_OPERATORS = "operator_id = ANY(SELECT id FROM operators WHERE repository_id = :id)"
_OF_REPOSITORY = "repository_id = :id"
_STEPS = (
    # Each brings along what refers to it: results their points, samples and traces, jobs their runs and logs.
    ("all_results", _OF_OPERATORS, 500),
    ("jobs", _OF_OPERATORS, 50),
    ("regressions", _OF_OPERATORS, 200),
    ("builds", _OF_OPERATORS, 200),
    ("series", _OF_OPERATORS, 200),
    ("variants", _OF_OPERATORS, 50),
    ("cases", _OF_OPERATORS, 50),
    ("operators", _OF_REPOSITORY, 50),
    ("submissions", _OF_REPOSITORY, 200),
    ("schedules", _OF_REPOSITORY, 50),
    ("saved_views", _OF_REPOSITORY, 50),
    ("patches", _OF_REPOSITORY, 50),
    ("commits", _OF_REPOSITORY, 200),
)
"""Tables in the order they are emptied, which rows of them, and how many at once."""


@dataclass(frozen=True, slots=True)
class DeletedRepository:
    """A repository whose rows are still to be deleted."""

    id: int
    url: str


def mark_deleted(s: Session, repository_id: int) -> None:
    """Makes a repository disappear: its name is free, its schedules stop. `delete_some` deletes its rows.

    NotFoundError when somebody else did it a moment before.
    """
    sql = """
    UPDATE repositories SET deleted_at = now(), name = name || ' (deleted ' || id || ')',
           webhook_secret = NULL, status_url = NULL, status_token = NULL
    WHERE id = :id AND deleted_at IS NULL RETURNING id
    """
    if s.execute(text(sql), {"id": repository_id}).one_or_none() is None:
        raise NotFoundError("the repository was deleted already")
    s.execute(text(f"UPDATE schedules SET is_enabled = false WHERE {_OF_REPOSITORY}"), {"id": repository_id})


def list_deleted(s: Session) -> list[DeletedRepository]:
    """Repositories that are being deleted, the first one first."""
    sql = "SELECT id, url FROM repositories WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT 100"
    return [DeletedRepository(row.id, row.url) for row in s.execute(text(sql))]


def cancel_some(s: Session, repository_id: int, limit: int = 50) -> int:
    """Cancels jobs of the repository that have not ended; returns how many."""
    open_states = f"('{JobState.QUEUED}', '{JobState.RUNNING}')"
    sql = f"SELECT id FROM jobs WHERE {_OF_OPERATORS} AND state IN {open_states} ORDER BY id LIMIT :limit"
    return sum(cancel_job(s, row.id) for row in s.execute(text(sql), {"id": repository_id, "limit": limit}).all())


def delete_some(s: Session, repository_id: int) -> bool:
    """Deletes one batch of a repository that is marked, and at last its own row; False when nothing is left."""
    values = {"id": repository_id}
    for table, condition, limit in _STEPS:
        rows = f"SELECT id FROM {table} WHERE {condition} LIMIT {limit}"
        # As an array, which is looked up by key: the planner could choose to read the whole table for a join.
        deleted = s.execute(text(f"DELETE FROM {table} WHERE id = ANY(ARRAY({rows})) RETURNING id"), values)
        if deleted.first() is not None:
            return True
    row = s.execute(text("DELETE FROM repositories WHERE id = :id AND deleted_at IS NOT NULL RETURNING id"), values)
    return row.first() is not None


def is_url_used(s: Session, url: str) -> bool:
    """Whether a repository that is not being deleted has this address."""
    sql = "SELECT EXISTS (SELECT FROM repositories WHERE url = :url AND deleted_at IS NULL)"
    return bool(s.scalar(text(sql), {"url": url}))
