"""Commit statuses that are to be delivered, and how that went."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.database import dumps
from warpwatch.db.reads.query import fetch


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


PENDING = "pending"
"""The state of a status whose submission has not come to its end."""
CLAIM_SECONDS = 60.0
"""How long one server has to send a status; afterwards another may. Longer than any delivery."""
_CLAIM_LOCK = 7_241_003
"""Of the advisory lock that orders claims: each takes a millisecond."""
SUPERSEDED = "not sent: a later status took its place"


@dataclass(frozen=True, slots=True)
class DueCallback:
    """A status that is to be sent now. submission_id: None for a commit that waits for a member. attempts: how often
    that failed before."""

    id: int
    submission_id: int | None
    url: str
    token: str | None
    body: dict[str, Any]
    attempts: int


def tell(s: Session, submission_id: int, url: str, body: dict[str, Any], *, is_final: bool) -> None:
    """Stores a status to send to `url`.

    A final one concludes the earlier statuses of the submission; another one with the same state as one that is not
    concluded is not stored.
    """
    sql = """
    INSERT INTO callbacks (submission_id, url, body, concluded_at)
    SELECT :id, :url, CAST(:body AS jsonb), CASE WHEN :is_final THEN now() END
    WHERE NOT EXISTS (SELECT FROM callbacks WHERE submission_id = :id AND concluded_at IS NULL
                      AND body ->> 'state' = :state)
    """
    parameters = {"id": submission_id, "url": url, "body": dumps(body), "state": body["state"], "is_final": is_final}
    if is_final:
        s.execute(
            text("UPDATE callbacks SET concluded_at = now() WHERE submission_id = :id AND concluded_at IS NULL"),
            parameters,
        )
    s.execute(text(sql), parameters)


def tell_before_submission(s: Session, repository_id: int, url: str, body: dict[str, Any]) -> None:
    """Stores a status of a commit that no submission has measured yet; once per address, however often it is told."""
    sql = """
    INSERT INTO callbacks (repository_id, url, body, concluded_at)
    SELECT :id, :url, CAST(:body AS jsonb), now()
    WHERE NOT EXISTS (SELECT FROM callbacks WHERE url = :url)
    """
    s.execute(text(sql), {"id": repository_id, "url": url, "body": dumps(body)})


def reopen(s: Session, submission_id: int, description: str) -> None:
    """Stores `pending` again for a submission that is measured again after its final status."""
    sql = "SELECT url, body, concluded_at FROM callbacks WHERE submission_id = :id ORDER BY id DESC LIMIT 1 FOR UPDATE"
    last = s.execute(text(sql), {"id": submission_id}).one_or_none()
    if last is not None and last.concluded_at is not None:
        tell(s, submission_id, last.url, {**last.body, "state": PENDING, "description": description}, is_final=False)


def list_open(s: Session) -> list[tuple[int, str]]:
    """(submission, url) of every status that waits for an end, oldest first, locked so that one process alone ends
    each."""
    sql = "SELECT submission_id, url FROM callbacks WHERE concluded_at IS NULL ORDER BY id FOR UPDATE SKIP LOCKED"
    return list(dict.fromkeys((row.submission_id, row.url) for row in s.execute(text(sql))))


def claim_due(s: Session) -> DueCallback | None:
    """The status to send next, claimed for CLAIM_SECONDS; what it takes the place of is not sent any more."""
    sql = """
    SELECT callbacks.id, submission_id, callbacks.url, body, attempts, status_token AS token
    FROM callbacks
    LEFT JOIN submissions ON submissions.id = submission_id
    JOIN repositories ON repositories.id = coalesce(submissions.repository_id, callbacks.repository_id)
    WHERE sent_at IS NULL AND given_up_at IS NULL AND next_at <= now()
      AND NOT EXISTS (SELECT FROM callbacks AS later WHERE later.submission_id = callbacks.submission_id
           AND later.id > callbacks.id)
      AND NOT EXISTS (SELECT FROM callbacks AS later WHERE callbacks.submission_id IS NULL
           AND later.url = callbacks.url AND later.id > callbacks.id)
      AND NOT EXISTS (SELECT FROM callbacks AS claimed
           LEFT JOIN submissions AS other ON other.id = claimed.submission_id
           WHERE claimed.claimed_until > now()
           AND coalesce(other.repository_id, claimed.repository_id) = repositories.id)
    ORDER BY next_at, callbacks.id LIMIT 1
    """
    s.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CLAIM_LOCK})
    row = s.execute(text(sql)).one_or_none()
    if row is None:
        return None
    values = {"submission_id": row.submission_id, "id": row.id, "message": SUPERSEDED, "seconds": CLAIM_SECONDS}
    older = """
    UPDATE callbacks SET given_up_at = now(), message = :message
    WHERE submission_id = :submission_id AND id < :id AND sent_at IS NULL AND given_up_at IS NULL
    """
    s.execute(text(older), values)
    claim = "UPDATE callbacks SET claimed_until = now() + make_interval(secs => :seconds) WHERE id = :id"
    s.execute(text(claim), values)
    return DueCallback(row.id, row.submission_id, row.url, row.token, row.body, row.attempts)
