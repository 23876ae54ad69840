"""Mutes noisy series: until a day has passed they raise neither suspicion nor alarm."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError
from warpwatch.db.models import MutedSeriesRecord, SeriesRecord
from warpwatch.db.registry import upsert


def mute(s: Session, series_ids: Sequence[int], *, until: date, author: str, reason: str) -> None:
    """Mutes every series until the end of a day, or none; an earlier day is replaced. NotFoundError for an unknown
    series."""
    ids = sorted(set(series_ids))
    known = set(s.scalars(select(SeriesRecord.id).where(SeriesRecord.id.in_(ids))))
    missing = set(ids) - known
    if missing:
        raise NotFoundError(f"there is no series {min(missing)}")
    row = {"until": until, "author": storable(author), "reason": storable(reason)}
    upsert(s, MutedSeriesRecord, [{"series_id": number, **row} for number in ids], key=["series_id"], refresh=[*row])


def unmute(s: Session, series_ids: Sequence[int]) -> None:
    """Lets series raise suspicions and alarms again; nothing for those that were not muted."""
    s.execute(delete(MutedSeriesRecord).where(MutedSeriesRecord.series_id.in_(list(series_ids))))
