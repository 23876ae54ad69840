"""Reads every point of a repository for an export, in pages that never hold more than a few thousand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.columns import unpack_samples
from warpwatch.db.reads.history import SeriesRow, list_series
from warpwatch.db.reads.query import MAX_PAGE

PAGE = 2000
"""Points of one page."""


@dataclass(frozen=True, slots=True)
class ExportFilter:
    """Which points to export; None means any. commit: a full id. with_samples: whether every sample comes along."""

    repository_id: int
    operator: str | None = None
    device: str | None = None
    metric: str | None = None
    commit: str | None = None
    with_samples: bool = False


@dataclass(frozen=True, slots=True)
class ExportedPoint:
    """One series at one commit, as one run measured it. card: the UUID of a GPU, a hash for a machine.
    samples_ns: empty unless they were asked for."""

    repository: str
    operator: str
    variant: str
    case: str
    device: str
    metric: str
    protocol: str
    commit: str
    ordinal: int
    authored_at: datetime
    measured_at: datetime
    environment: str
    card: str | None
    median_ns: float
    low_ns: float
    high_ns: float
    noise: float
    count: int
    samples_ns: list[float]


@dataclass(frozen=True, slots=True)
class ExportCursor:
    """Where a series was left: the ordinal and id of the last point."""

    ordinal: int = -1
    point_id: int = 0


def list_exported_series(session: Session, chosen: ExportFilter, before: int | None) -> list[SeriesRow]:
    """A page of the series, newest first; before: the id of the last one of the page before."""
    filters = (chosen.operator, None, None, chosen.device, chosen.metric)
    return list_series(session, chosen.repository_id, *filters, before=before, limit=MAX_PAGE).items


_POINTS = """
SELECT commits.sha AS commit, points.ordinal, commits.authored_at, points.measured_at,
       environments.key AS environment, cards.key AS card, median_ns, low_ns, high_ns, noise, count,
       points.id AS point_id,
       {samples} AS data
FROM points JOIN commits ON commits.id = points.commit_id JOIN environments ON environments.id = points.environment_id
LEFT JOIN cards ON cards.id = points.card_id
{join}
WHERE points.series_id = :series_id AND (points.ordinal, points.id) > (:ordinal, :point_id)
  AND (CAST(:commit AS text) IS NULL OR commits.sha = :commit)
ORDER BY points.ordinal, points.id LIMIT :limit
"""
_WITH_SAMPLES = _POINTS.format(samples="samples.data", join="LEFT JOIN samples ON samples.point_id = points.id")
_WITHOUT_SAMPLES = _POINTS.format(samples="NULL", join="")


def list_points(
    session: Session, series: SeriesRow, chosen: ExportFilter, after: ExportCursor
) -> tuple[list[ExportedPoint], ExportCursor | None]:
    """The points of a series after the cursor, oldest commit first; and the cursor of the next page, or None."""
    # A page of samples is the larger part of what an export keeps in memory.
    size = PAGE // 20 if chosen.with_samples else PAGE
    rows = session.execute(
        text(_WITH_SAMPLES if chosen.with_samples else _WITHOUT_SAMPLES),
        {
            "series_id": series.id,
            "ordinal": after.ordinal,
            "point_id": after.point_id,
            "commit": chosen.commit,
            "limit": size,
        },
    ).all()
    points = [_point(series, dict(row._mapping)) for row in rows]
    return points, ExportCursor(rows[-1].ordinal, rows[-1].point_id) if len(rows) == size else None


def _point(series: SeriesRow, values: dict[str, Any]) -> ExportedPoint:
    data: bytes | None = values.pop("data")
    del values["point_id"]
    return ExportedPoint(
        repository=series.repository,
        operator=series.operator,
        variant=series.variant,
        case=series.case,
        device=series.device_key,
        metric=series.metric,
        protocol=series.protocol,
        samples_ns=[] if data is None else unpack_samples(data),
        **values,
    )
