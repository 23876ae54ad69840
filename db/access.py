"""Writes personal tokens, the end of sessions, and who did what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.words import AccountRole, TokenScope
from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError
from warpwatch.db.models import AccessTokenRecord

USE_SECONDS = 60.0
"""How exactly the last use of a token is kept, so that not every request writes."""


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """Whom a valid token belongs to, and what it may do: its scope, and no more than the role of the account. Tokens
    that the release before made have no account."""

    id: int
    person: str
    scope: TokenScope
    account_id: int | None
    role: AccountRole | None


@dataclass(frozen=True, slots=True)
class NewAuditEntry:
    """A request that changed something; see db.models.AuditEntryRecord."""

    caller: str
    method: str
    route: str
    path: str
    status: int
    request_id: str | None


def add_token(
    s: Session,
    account_id: int,
    person: str,
    purpose: str,
    token_hash: str,
    scope: TokenScope,
    expires_at: datetime | None,
) -> int:
    """The id of a new token. person: the name of the account."""
    row = AccessTokenRecord(
        account_id=account_id,
        person=storable(person),
        purpose=storable(purpose),
        token_hash=token_hash,
        scope=scope,
        expires_at=expires_at,
    )
    s.add(row)
    s.flush()
    return row.id


def revoke_token(s: Session, token_id: int, account_id: int | None = None) -> None:
    """Ends a token and the sessions that it opened; NotFoundError when there is no such token, of that account if one
    is given."""
    sql = """
    UPDATE access_tokens SET revoked_at = coalesce(revoked_at, now())
    WHERE id = :id AND (CAST(:account_id AS bigint) IS NULL OR account_id = :account_id) RETURNING id
    """
    if s.execute(text(sql), {"id": token_id, "account_id": account_id}).one_or_none() is None:
        raise NotFoundError(f"there is no token {token_id}")


def use_token(s: Session, *, token_hash: str | None = None, token_id: int | None = None) -> TokenHolder | None:
    """The holder of a token that is neither revoked nor expired, by its hash or its id; notes that it was used. None
    where the account is disabled."""
    sql = """
    SELECT tokens.id, coalesce(accounts.name, person) AS person, scope, account_id, role,
           tokens.last_used_at IS NULL OR tokens.last_used_at < now() - make_interval(secs => :seconds) AS is_stale
    FROM access_tokens AS tokens LEFT JOIN accounts ON accounts.id = account_id
    WHERE {condition} AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) AND disabled_at IS NULL
    """
    condition = "token_hash = :hash" if token_hash is not None else "tokens.id = :id"
    values = {"hash": token_hash, "id": token_id, "seconds": USE_SECONDS}
    row = s.execute(text(sql.format(condition=condition)), values).one_or_none()
    if row is None:
        return None
    if row.is_stale:
        s.execute(text("UPDATE access_tokens SET last_used_at = now() WHERE id = :id"), {"id": row.id})
        s.execute(text("UPDATE accounts SET last_used_at = now() WHERE id = :id"), {"id": row.account_id})
    role = AccountRole(row.role) if row.role is not None else None
    return TokenHolder(row.id, row.person, TokenScope(row.scope), row.account_id, role)


def end_session(s: Session, name: str, seconds: float) -> bool:
    """Refuses a session on all servers until its cookie has expired. False where it had ended before."""
    s.execute(text("DELETE FROM ended_sessions WHERE expires_at < now()"))
    sql = """
    INSERT INTO ended_sessions (name, expires_at) VALUES (:name, now() + make_interval(secs => :seconds))
    ON CONFLICT DO NOTHING RETURNING name
    """
    return s.execute(text(sql), {"name": name, "seconds": seconds}).one_or_none() is not None


def is_session_ended(s: Session, name: str) -> bool:
    """Whether a session was logged out, on any server."""
    return bool(s.scalar(text("SELECT EXISTS (SELECT FROM ended_sessions WHERE name = :name)"), {"name": name}))


def record_audit(s: Session, entry: NewAuditEntry) -> None:
    """Keeps who changed what."""
    sql = """
    INSERT INTO audit_entries (caller, method, route, path, status, request_id)
    VALUES (:caller, :method, :route, :path, :status, :request_id)
    """
    values = {name: getattr(entry, name) for name in NewAuditEntry.__slots__}
    s.execute(text(sql), values | {"caller": storable(entry.caller), "path": storable(entry.path)[:500]})
