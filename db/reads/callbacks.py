"""Reads which commit statuses were told, and how that went."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from warpwatch.db.reads.query import Session, fetch


@dataclass(frozen=True, slots=True)
class CallbackRow:
    """One commit status. state: what it tells. outcome: sent | waiting | given up; message: what went wrong last."""

    id: int
    state: str
    description: str
    url: str
    outcome: str
    attempts: int
    message: str
    created_at: datetime
    sent_at: datetime | None
    next_at: datetime | None


def list_callbacks(session: Session, submission_id: int) -> list[CallbackRow]:
    """Commit statuses of a submission, oldest first. Their token is never read."""
    sql = """
    SELECT id, body ->> 'state' AS state, coalesce(body ->> 'description', '') AS description, url,
           CASE WHEN sent_at IS NOT NULL THEN 'sent' WHEN given_up_at IS NOT NULL THEN 'given up'
                ELSE 'waiting' END AS outcome,
           attempts, message, created_at, sent_at,
           CASE WHEN sent_at IS NULL AND given_up_at IS NULL AND attempts > 0 THEN next_at END AS next_at
    FROM callbacks WHERE submission_id = :id ORDER BY id LIMIT 200
    """
    return fetch(session, CallbackRow, sql, id=submission_id)
