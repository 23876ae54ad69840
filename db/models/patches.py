"""Uncommitted changes that somebody sent to be measured: they have results of their own and enter no history."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.db.models.base import Base, created


class PatchRecord(Base):
    """A patch, once for each content. Its commit, its jobs and their outcomes go with it."""

    __tablename__ = "patches"
    __table_args__ = (UniqueConstraint("repository_id", "sha"), Index(None, "used_at"))
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    sha: Mapped[str]
    """The commit that it makes on its base, which no branch holds; see warpwatch.patches."""
    base_sha: Mapped[str]
    content: Mapped[bytes]
    created_at: Mapped[datetime] = created()
    used_at: Mapped[datetime] = created()
    """When it was last sent or submitted; it is deleted some days later."""


class PatchOutcomeRecord(Base):
    """What a job of a patch found, apart from all results: contract.outcome.Outcome as JSON, without catalogues."""

    __tablename__ = "patch_outcomes"
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    outcome: Mapped[dict[str, Any]]
