"""Keys of workers without the database's address, and what they are sending."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.db.models.base import Base, created


class WorkerKeyRecord(Base):
    """What a worker shows to a server. It was shown once; only its digest is stored."""

    __tablename__ = "worker_keys"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    digest: Mapped[str] = mapped_column(unique=True)
    """SHA-256, in hexadecimal digits."""
    created_at: Mapped[datetime] = created()
    last_used_at: Mapped[datetime | None]
    """To the minute."""
    revoked_at: Mapped[datetime | None]


class ResultChunkRecord(Base):
    """A piece of a results file that a running worker sends; gone once the run has ended."""

    __tablename__ = "result_chunks"
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    start: Mapped[int] = mapped_column(primary_key=True)
    """The position of its first byte in the file."""
    data: Mapped[bytes]
