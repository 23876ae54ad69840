"""Tells everyone who listens that something changed: PostgreSQL's NOTIFY, sent after the transaction that made the
change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from typing import Any

import psycopg
from psycopg import AsyncConnection
from sqlalchemy import select
from sqlalchemy.orm import Session

from warpwatch.db.database import ANNOUNCEMENTS, CHANNEL, CONNECTION, libpq_url
from warpwatch.db.models import DeviceRecord

_LONGEST_PAUSE_SECONDS = 5.0
_PROBE_SECONDS = 10.0


def announce(
    session: Session,
    kind: str,
    *,
    job_id: int | None = None,
    submission_id: int | None = None,
    device_key: str | None = None,
) -> None:
    """Sends {"type": kind, "job": …, "submission": …, "device": …} once the transaction has committed.

    kind: log | progress | state | regression, or queued: jobs wait for the device.
    """
    announcement = {"job": job_id, "submission": submission_id, "type": kind, "device": device_key}
    session.info.setdefault(ANNOUNCEMENTS, []).append(json.dumps(announcement))


def announce_queued(session: Session, device_ids: Collection[int]) -> None:
    """Wakes whoever gives jobs to the workers of these devices, once the transaction has committed."""
    for key in session.scalars(select(DeviceRecord.key).where(DeviceRecord.id.in_(device_ids))):
        announce(session, "queued", device_key=key)


async def listen(url: str) -> AsyncIterator[dict[str, Any]]:
    """Every announcement from now on, without end.

    Survives outages of the database. Whenever it is connected, at first and again after an outage, it yields
    {"type": "connected", "job": None, …}: what was announced before is lost, so read everything anew.
    """
    pause = 0.1
    while True:
        try:
            async with await AsyncConnection.connect(libpq_url(url), autocommit=True, **CONNECTION) as connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                pause = 0.1
                yield {"type": "connected", "job": None, "submission": None, "device": None}
                while True:
                    async for notification in connection.notifies(timeout=_PROBE_SECONDS):
                        yield json.loads(notification.payload)
                    # A connection that died without a word is noticed only by using it.
                    await connection.execute("SELECT 1")
        except psycopg.OperationalError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
