"""Muted series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError
from warpwatch.db.models import MutedSeriesRecord, SeriesRecord
from warpwatch.db.reads.query import Page, fetch, fetch_page
from warpwatch.db.registry import upsert


@dataclass(frozen=True, slots=True)
class MutedSeriesRow:
    """A series that raises neither suspicion nor alarm through the day `until`. id: of the series."""

    id: int
    operator: str
    variant: str
    case: str
    metric: str
    device_key: str
    until: date
    author: str
    reason: str
    created_at: datetime


_MUTED = """
SELECT series.id, operators.name AS operator, variants.name AS variant, cases.key AS case, series.metric,
       devices.key AS device_key, muted_series.until, muted_series.author, muted_series.reason, muted_series.created_at
FROM muted_series
JOIN series ON series.id = muted_series.series_id
JOIN operators ON operators.id = series.operator_id
JOIN variants ON variants.id = series.variant_id
JOIN cases ON cases.id = series.case_id
JOIN devices ON devices.id = series.device_id
WHERE muted_series.until >= current_date
"""

IS_MUTED = "EXISTS (SELECT FROM muted_series WHERE muted_series.series_id = {0} AND muted_series.until >= current_date)"
"""SQL: whether the series with this id is muted today."""


def list_muted(
    session: Session, repository_id: int, before: int | None = None, limit: int = 50
) -> Page[MutedSeriesRow]:
    """The muted series of a repository, the newest series first; `before` is `next_before` of the page before."""
    sql = f"""
    {_MUTED} AND operators.repository_id = :repository_id
      AND (CAST(:before AS bigint) IS NULL OR series.id < :before)
    ORDER BY series.id DESC LIMIT :limit
    """
    return fetch_page(session, MutedSeriesRow, sql, limit, repository_id=repository_id, before=before)


def find_muted(session: Session, series_ids: Iterable[int]) -> dict[int, MutedSeriesRow]:
    """Those of the series that are muted today, by id."""
    rows = fetch(session, MutedSeriesRow, f"{_MUTED} AND series.id = ANY(:ids)", ids=list(series_ids))
    return {row.id: row for row in rows}


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
