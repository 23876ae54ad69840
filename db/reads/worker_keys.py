"""Reads the keys of workers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from warpwatch.db.reads.query import Page, Session, fetch_page


@dataclass(frozen=True, slots=True)
class WorkerKeyRow:
    """workers: how many were registered with the key and have not stopped."""

    id: int
    name: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None
    workers: int


def list_keys(session: Session, before: int | None = None, limit: int = 50) -> Page[WorkerKeyRow]:
    """Keys, newest first, also revoked ones."""
    sql = """
    SELECT id, name, created_at, last_used_at, revoked_at,
           (SELECT count(*) FROM workers WHERE key_id = worker_keys.id AND stopped_at IS NULL) AS workers
    FROM worker_keys WHERE CAST(:before AS bigint) IS NULL OR id < :before ORDER BY id DESC LIMIT :limit
    """
    return fetch_page(session, WorkerKeyRow, sql, limit, before=before)
