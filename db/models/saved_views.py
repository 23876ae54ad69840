"""What people keep for others to open: views, which are links with a name."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.db.models.base import Base, created


class SavedViewRecord(Base):
    """A link to one of our pages with all its filters, under a name."""

    __tablename__ = "saved_views"
    __table_args__ = (UniqueConstraint("repository_id", "name"), Index(None, "repository_id", "id"))
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    name: Mapped[str]
    path: Mapped[str]
    """Path and query of the page."""
    created_at: Mapped[datetime] = created()
