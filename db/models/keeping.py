"""What is kept and what is to be deleted: ages of each kind of data, and deletions under way."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.contract.words import RetentionKind
from warpwatch.db.models.base import Base, created, one_of


class RetentionRuleRecord(Base):
    """How long a repository keeps one kind of data; without a row it keeps it for good."""

    __tablename__ = "retention_rules"
    __table_args__ = (one_of("kind", RetentionKind), CheckConstraint("days BETWEEN 1 AND 36500", name="days_possible"))
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    days: Mapped[int]
    seen_id: Mapped[int] = mapped_column(server_default="0")
    """Rows up to this one were looked at with these days, so that no round reads them again."""
    run_at: Mapped[datetime | None]
    deleted: Mapped[int] = mapped_column(server_default="0")
    """What it has deleted altogether."""
    freed_bytes: Mapped[int] = mapped_column(server_default="0")


class DeletionRecord(Base):
    """A submission, or the commits of a branch, that somebody deleted; gone once all their rows are."""

    __tablename__ = "deletions"
    __table_args__ = (UniqueConstraint("submission_id"), Index(None, "repository_id"))
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    submission_id: Mapped[int | None] = mapped_column(ForeignKey("submissions.id", ondelete="CASCADE"))
    """None where it is about commits."""
    commit_ids: Mapped[list[Any]] = mapped_column(server_default="[]")
    requested_at: Mapped[datetime] = created()
