"""What shows that checks and timings can be trusted: runs of the adversaries that come with the service."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.db.models.base import Base, created


class ProofRecord(Base):
    """One run of all adversaries of a kind on a device.

    `content` holds what became of each; see worker.proving.Proof.
    """

    __tablename__ = "proofs"
    __table_args__ = (Index(None, "device_id", "kind", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"))
    kind: Mapped[str]
    version: Mapped[str]
    content: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = created()
