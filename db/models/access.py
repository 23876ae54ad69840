"""Who may ask, and who did what."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.contract.words import TokenScope
from warpwatch.db.models.base import Base, created, one_of


class AccessTokenRecord(Base):
    """A person's token. Only a hash of it is kept."""

    __tablename__ = "access_tokens"
    __table_args__ = (one_of("scope", TokenScope),)
    id: Mapped[int] = mapped_column(primary_key=True)
    person: Mapped[str]
    purpose: Mapped[str] = mapped_column(server_default="")
    token_hash: Mapped[str] = mapped_column(unique=True)
    scope: Mapped[str]
    created_at: Mapped[datetime] = created()
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
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
