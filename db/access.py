"""Access tokens, sessions that ended, and the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from warpwatch.contract.words import AccountRole, TokenScope
from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError
from warpwatch.db.models.base import Base, created, one_of
from warpwatch.db.reads.query import Page, fetch_page


class AccountRecord(Base):
    """A person or program that may sign in.

    issuer, subject: whom an OpenID provider knows it as. is_role_fixed: an administrator chose the role, so that the
    provider does not change it. invitation_hash: of the link that signs in once, until invitation_expires_at.
    """

    __tablename__ = "accounts"
    __table_args__ = (one_of("role", AccountRole), UniqueConstraint("issuer", "subject"))
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    role: Mapped[str]
    is_role_fixed: Mapped[bool] = mapped_column(server_default="true")
    issuer: Mapped[str | None]
    subject: Mapped[str | None]
    invitation_hash: Mapped[str | None] = mapped_column(unique=True)
    invitation_expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = created()
    disabled_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class AccessTokenRecord(Base):
    """A person's token. Only a hash of it is kept. account_id: null where the release before made it."""

    __tablename__ = "access_tokens"
    __table_args__ = (one_of("scope", TokenScope),)
    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[int | None] = mapped_column(ForeignKey("accounts.id"), index=True)
    person: Mapped[str]
    purpose: Mapped[str] = mapped_column(server_default="")
    token_hash: Mapped[str] = mapped_column(unique=True)
    scope: Mapped[str]
    created_at: Mapped[datetime] = created()
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class CiIdentityRecord(Base):
    """CI jobs of a code host that may submit for a repository. subject: whom the ID token must name; `*` stands for
    anything."""

    __tablename__ = "ci_identities"
    __table_args__ = (UniqueConstraint("repository_id", "issuer", "audience", "subject"), Index(None, "issuer"))
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    issuer: Mapped[str]
    audience: Mapped[str]
    subject: Mapped[str]
    created_at: Mapped[datetime] = created()
    last_used_at: Mapped[datetime | None]


class EndedSessionRecord(Base):
    """A session that was logged out before its cookie expired, for all servers to refuse."""

    __tablename__ = "ended_sessions"
    __table_args__ = (Index(None, "expires_at"),)
    name: Mapped[str] = mapped_column(primary_key=True)
    expires_at: Mapped[datetime]


class AuditEntryRecord(Base):
    """A request that changed something."""

    __tablename__ = "audit_entries"
    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime] = created()
    caller: Mapped[str]
    method: Mapped[str]
    route: Mapped[str]
    path: Mapped[str]
    status: Mapped[int]
    request_id: Mapped[str | None]


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
