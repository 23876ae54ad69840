"""Stores how each attempt to send a message went, of the tables of which a row is one message."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.database import storable

MessageTable = Literal["callbacks", "deliveries", "forge_messages"]


def record_sent(s: Session, table: MessageTable, message_id: int) -> None:
    """The message was taken."""
    sql = f"""
    UPDATE {table} SET attempts = attempts + 1, sent_at = now(), message = '', claimed_until = NULL WHERE id = :id
    """
    s.execute(text(sql), {"id": message_id})


def record_failure(s: Session, table: MessageTable, message_id: int, trouble: str, pause_seconds: float | None) -> None:
    """The message was not taken; it is tried again after the pause, or, without one, not any more."""
    sql = f"""
    UPDATE {table} SET attempts = attempts + 1, message = :message, claimed_until = NULL,
           next_at = now() + make_interval(secs => coalesce(CAST(:pause AS double precision), 0)),
           given_up_at = CASE WHEN CAST(:pause AS double precision) IS NULL THEN now() END
    WHERE id = :id
    """
    s.execute(text(sql), {"id": message_id, "message": storable(trouble), "pause": pause_seconds})
