"""What people keep an eye on."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.db.models.base import Base, created


class WatchRecord(Base):
    """An operator, or one of its cases, that a person keeps an eye on. case_id: None stands for all cases."""

    __tablename__ = "watches"
    __table_args__ = (
        UniqueConstraint("operator_id", "person", "case_id", postgresql_nulls_not_distinct=True),
        Index(None, "case_id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    person: Mapped[str]
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    case_id: Mapped[int | None] = mapped_column(ForeignKey("cases.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = created()
