"""Results files on their way from a worker: stored in pieces, so that a broken connection costs one of them, and any
server takes the next one."""

from __future__ import annotations

from typing import IO

from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from warpwatch.db.models import ResultChunkRecord

_DELETE_ENDED = text("""
DELETE FROM result_chunks USING runs WHERE runs.id = result_chunks.run_id AND runs.state <> 'running'
""")


def _received_bytes(session: Session, run_id: int) -> int:
    """How much of its results file has come from a run."""
    end = ResultChunkRecord.start + func.octet_length(ResultChunkRecord.data)
    return session.scalar(select(func.max(end)).where(ResultChunkRecord.run_id == run_id)) or 0


def add_chunk(session: Session, run_id: int, start: int, data: bytes) -> int:
    """Stores the piece if it begins where the others end; where the next one begins."""
    received = _received_bytes(session, run_id)
    if start != received:
        return received
    session.execute(insert(ResultChunkRecord).values(run_id=run_id, start=start, data=data).on_conflict_do_nothing())
    return start + len(data)


def copy_chunks(session: Session, run_id: int, target: IO[bytes]) -> None:
    """Writes the file to `target`, one piece in memory at a time."""
    starts = session.scalars(
        select(ResultChunkRecord.start).where(ResultChunkRecord.run_id == run_id).order_by(ResultChunkRecord.start)
    ).all()
    for start in starts:
        piece = (ResultChunkRecord.run_id == run_id, ResultChunkRecord.start == start)
        target.write(session.scalars(select(ResultChunkRecord.data).where(*piece)).one())


def forget_chunks(session: Session, run_id: int) -> None:
    """Drops the pieces of a run: they are recorded, or must be sent anew."""
    session.execute(delete(ResultChunkRecord).where(ResultChunkRecord.run_id == run_id))


def forget_ended_chunks(session: Session) -> None:
    """Drops the pieces of runs that ended without them."""
    session.execute(_DELETE_ENDED)
