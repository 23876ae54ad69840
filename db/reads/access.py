"""Reads personal tokens, and who did what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from warpwatch.contract.words import AccountRole, TokenScope
from warpwatch.db.reads.query import Page, Session, fetch_page

_SCOPES = f"CAST(ARRAY{[str(scope) for scope in TokenScope]} AS text[])"
_ROLES = f"CAST(ARRAY{[str(role) for role in AccountRole]} AS text[])"
"""In the same order: what a role may do is the scope in its place."""


@dataclass(frozen=True, slots=True)
class AccessTokenRow:
    """A person's token, of which only a hash is kept. scope: what it may do, which is never more than the role of the
    account. state: valid | expired | revoked | disabled (the account is)."""

    id: int
    person: str
    purpose: str
    scope: str
    state: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


def list_tokens(
    session: Session, account_id: int | None = None, before: int | None = None, limit: int = 50
) -> Page[AccessTokenRow]:
    """All tokens, or those of one account, newest first."""
    sql = f"""
    SELECT tokens.id, person, purpose, tokens.created_at, expires_at, tokens.last_used_at,
           ({_SCOPES})[least(array_position({_SCOPES}, scope), array_position({_ROLES}, role))] AS scope,
           CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= now() THEN 'expired'
                WHEN disabled_at IS NOT NULL THEN 'disabled' ELSE 'valid' END AS state
    FROM access_tokens AS tokens LEFT JOIN accounts ON accounts.id = account_id
    WHERE (CAST(:before AS bigint) IS NULL OR tokens.id < :before)
      AND (CAST(:account_id AS bigint) IS NULL OR account_id = :account_id)
    ORDER BY tokens.id DESC LIMIT :limit
    """
    return fetch_page(session, AccessTokenRow, sql, limit, before=before, account_id=account_id)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A request that changed something.

    caller: the name of an account, `ci …` for a CI job, `token` for WARPWATCH_TOKEN, `webhook`, `local` where no token
    is asked for, or a member of a forge, such as `github:ann`.
    """

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
