"""Reads personal tokens, and who did what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from warpwatch.db.reads.query import Page, Session, fetch_page


@dataclass(frozen=True, slots=True)
class AccessTokenRow:
    """A person's token, of which only a hash is kept. state: valid | expired | revoked."""

    id: int
    person: str
    purpose: str
    scope: str
    state: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


def list_tokens(session: Session, before: int | None = None, limit: int = 50) -> Page[AccessTokenRow]:
    """All tokens, newest first."""
    sql = """
    SELECT id, person, purpose, scope, created_at, expires_at, last_used_at,
           CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= now() THEN 'expired' ELSE 'valid' END
           AS state
    FROM access_tokens WHERE CAST(:before AS bigint) IS NULL OR id < :before ORDER BY id DESC LIMIT :limit
    """
    return fetch_page(session, AccessTokenRow, sql, limit, before=before)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A request that changed something. caller: a person with a token, `token` for WARPWATCH_TOKEN, `webhook`,
    `local` where no token is asked for, or a member of a forge, such as `github:ann`."""

    id: int
    at: datetime
    caller: str
    method: str
    route: str
    path: str
    status: int
    request_id: str | None


def list_audit(session: Session, before: int | None = None, limit: int = 50) -> Page[AuditEntry]:
    """Who changed what, newest first."""
    sql = """
    SELECT id, at, caller, method, route, path, status, request_id FROM audit_entries
    WHERE CAST(:before AS bigint) IS NULL OR id < :before ORDER BY id DESC LIMIT :limit
    """
    return fetch_page(session, AuditEntry, sql, limit, before=before)
