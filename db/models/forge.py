"""Forges: how a repository is linked to its code host, its pull requests, and what the host is sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.contract.words import ForgeKind, ForgeMessageKind, ForgeState
from warpwatch.db.models.base import Base, created, one_of


class ForgeLinkRecord(Base):
    """A repository's project on a code host."""

    __tablename__ = "forge_links"
    __table_args__ = (one_of("forge", ForgeKind), one_of("state", ForgeState))
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"), primary_key=True)
    forge: Mapped[str]
    api_url: Mapped[str | None]
    """Of GitLab, such as https://gitlab.example/api/v4; GitHub's is a setting of the server, whose app's key goes
    there."""
    project: Mapped[str]
    """owner/name."""
    token: Mapped[str | None]
    """Of a GitLab project; for GitHub the server has a key."""
    files_issues: Mapped[bool] = mapped_column(server_default="false")
    issues_since: Mapped[datetime | None]
    """What was confirmed before is filed as no issue."""
    state: Mapped[str] = mapped_column(server_default="unknown")
    message: Mapped[str] = mapped_column(server_default="")
    """What went wrong last."""
    checked_at: Mapped[datetime | None]
    paused_until: Mapped[datetime | None]
    """Until when the forge wants to be left alone."""
    created_at: Mapped[datetime] = created()


class ChangeRequestRecord(Base):
    """A pull or merge request, as the newest event tells it."""

    __tablename__ = "change_requests"
    __table_args__ = (UniqueConstraint("repository_id", "number"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    number: Mapped[int]
    head_sha: Mapped[str]
    head_at: Mapped[datetime | None]
    """When the forge says that it got this head; None where no event told."""
    is_fork: Mapped[bool]
    allowed_sha: Mapped[str | None]
    """The head that a member allowed to be measured."""
    allowed_by: Mapped[str | None]
    answer: Mapped[str] = mapped_column(server_default="")
    """To the newest command, in Markdown."""
    created_at: Mapped[datetime] = created()


class ForgeMessageRecord(Base):
    """Something that a forge is to be sent or asked, tried again until it is. What is sent is read when it is sent."""

    __tablename__ = "forge_messages"
    __table_args__ = (
        one_of("kind", ForgeMessageKind),
        Index(None, "repository_id", "subject", "id"),
        Index(None, "repository_id", "id"),
        Index(None, "submission_id", postgresql_where="submission_id IS NOT NULL"),
        Index(None, "change_id", postgresql_where="change_id IS NOT NULL"),
        Index(None, "regression_id", postgresql_where="regression_id IS NOT NULL"),
        Index("ix_forge_messages_due", "next_at", postgresql_where="sent_at IS NULL AND given_up_at IS NULL"),
        Index("ix_forge_messages_given_up", "given_up_at", postgresql_where="given_up_at IS NOT NULL"),
        Index("ix_forge_messages_open", "id", postgresql_where="concluded_at IS NULL"),
        Index("ix_forge_messages_claimed", "claimed_until", postgresql_where="claimed_until IS NOT NULL"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("forge_links.repository_id", ondelete="CASCADE"))
    kind: Mapped[str]
    subject: Mapped[str]
    """What it is about, such as `check_run:7`: of several messages about one thing only the newest is sent."""
    state: Mapped[str] = mapped_column(server_default="")
    """What it tells: pending, failing or final; open or closed."""
    fields: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    submission_id: Mapped[int | None] = mapped_column(ForeignKey("submissions.id", ondelete="CASCADE"))
    change_id: Mapped[int | None] = mapped_column(ForeignKey("change_requests.id", ondelete="CASCADE"))
    regression_id: Mapped[int | None] = mapped_column(ForeignKey("regressions.id", ondelete="CASCADE"))
    remote_id: Mapped[str | None]
    """What the forge calls the check run, comment or issue that it made."""
    attempts: Mapped[int] = mapped_column(server_default="0")
    next_at: Mapped[datetime] = created()
    claimed_until: Mapped[datetime | None]
    message: Mapped[str] = mapped_column(server_default="")
    created_at: Mapped[datetime] = created()
    sent_at: Mapped[datetime | None]
    given_up_at: Mapped[datetime | None]
    concluded_at: Mapped[datetime | None] = created()
    """When the submission came to the end that it, or a later one, tells; None while that is awaited."""
