"""Who may ask, and who did what."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.contract.words import AccountRole, TokenScope
from warpwatch.db.models.base import Base, created, one_of


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
