"""Reads series: their list, their points over commits, and the samples behind a point."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from warpwatch.db.reads.query import Page, Session, fetch, fetch_one, fetch_page
from warpwatch.db.samples import unpack_samples


@dataclass(frozen=True, slots=True)
class SeriesRow:
    id: int
    repository: str
    operator: str
    case: str
    variant: str
    device_key: str
    device_name: str
    metric: str
    protocol: str
    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PointRow:
    """One point of a history, with what the tooltip shows."""

    id: int
    commit_sha: str
    ordinal: int
    subject: str
    author: str
    authored_at: datetime
    environment_id: int
    median_ns: float
    low_ns: float
    high_ns: float
    noise: float
    count: int
    roofline_share: float | None
    bound: str | None
    result_id: int
    distribution: dict[str, Any] | None = None
    """contract.measurement.Distribution as JSON: drift, modes, autocorrelation, outliers, effective; None where it is
    not stored."""


@dataclass(frozen=True, slots=True)
class PointSamples:
    """Every kept sample of one point, in the order they were taken, one call each. distribution: see PointRow."""

    id: int
    series_id: int
    commit_sha: str
    median_ns: float
    low_ns: float
    high_ns: float
    dropped: int
    samples_ns: list[float]
    distribution: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StatusMark:
    """A commit of a history where check or bench ended in another status than ok."""

    commit_sha: str
    ordinal: int
    kind: str
    status: str
    message: str


@dataclass(frozen=True, slots=True)
class ReadingRow:
    """What one run measured in one series.

    Unlike points of a history, all runs of a commit count: repeats teach the noise.
    """

    commit_sha: str
    commit_id: int
    ordinal: int
    environment_id: int
    device_kind: str
    median_ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True, slots=True)
class SeriesHistory:
    series: SeriesRow
    points: list[PointRow]
    marks: list[StatusMark]
    environments: dict[int, dict[str, Any]]
    """Environment id to facts."""


MAX_POINTS = 5000
"""Points that one history may hold."""

_SERIES = """
SELECT series.id, repositories.name AS repository, operators.name AS operator, cases.key AS case,
     variants.name AS variant,
       devices.key AS device_key, devices.name AS device_name, metric, protocol, cases.flops, cases.bytes
FROM series
JOIN operators ON operators.id = series.operator_id
JOIN repositories ON repositories.id = operators.repository_id
JOIN cases ON cases.id = series.case_id
JOIN variants ON variants.id = series.variant_id
JOIN devices ON devices.id = series.device_id
"""

_FILTERS = """
WHERE operators.repository_id = :repository_id
  AND (CAST(:operator AS text) IS NULL OR operators.name = :operator)
  AND (CAST(:case_key AS text) IS NULL OR cases.key = :case_key)
  AND (CAST(:variant AS text) IS NULL OR variants.name = :variant)
  AND (CAST(:device_key AS text) IS NULL OR devices.key = :device_key)
  AND (CAST(:metric AS text) IS NULL OR series.metric = :metric)
"""


def list_series(
    session: Session,
    repository_id: int,
    operator: str | None = None,
    case: str | None = None,
    variant: str | None = None,
    device_key: str | None = None,
    metric: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> Page[SeriesRow]:
    """Series that match every filter given, newest first; `before` is the id of the last series of the page before."""
    sql = f"""
    {_SERIES} {_FILTERS} AND (CAST(:before AS bigint) IS NULL OR series.id < :before)
    ORDER BY series.id DESC LIMIT :limit
    """
    return fetch_page(
        session,
        SeriesRow,
        sql,
        limit,
        repository_id=repository_id,
        operator=operator,
        case_key=case,
        variant=variant,
        device_key=device_key,
        metric=metric,
        before=before,
    )


def find_series(
    session: Session, repository_id: int, operator: str, case: str, variant: str, device_key: str, metric: str
) -> SeriesRow | None:
    """The series of the newest protocol, or None when it was never measured."""
    found = list_series(session, repository_id, operator, case, variant, device_key, metric, limit=1).items
    return found[0] if found else None


def read_series(session: Session, series_id: int) -> SeriesRow | None:
    return fetch_one(session, SeriesRow, _SERIES + "WHERE series.id = :id", id=series_id)


_POINTS = """
SELECT newest.id, commits.sha AS commit_sha, newest.ordinal, subject, author, authored_at, newest.environment_id,
       median_ns, low_ns, high_ns, noise, count, roofline_share, bound, result_id,
       results.details -> 'distributions' -> (SELECT metric FROM series WHERE id = :series_id) AS distribution
FROM (
    SELECT DISTINCT ON (ordinal, commit_id) * FROM points
    WHERE series_id = :series_id AND ordinal BETWEEN :first AND :last
    ORDER BY ordinal DESC, commit_id DESC, id DESC LIMIT :limit
) AS newest
JOIN commits ON commits.id = newest.commit_id
JOIN results ON results.id = newest.result_id
ORDER BY newest.ordinal, newest.commit_id
"""

_MARKS = """
SELECT commits.sha AS commit_sha, results.ordinal, kind, status, message
FROM series
JOIN results ON series.variant_id = results.variant_id AND series.case_id = results.case_id
     AND series.device_id = results.device_id
JOIN commits ON commits.id = results.commit_id
WHERE series.id = :series_id AND results.kind IN ('check', 'bench') AND results.ordinal BETWEEN :first AND :last
  AND status <> 'ok' AND NOT EXISTS (
    SELECT FROM results AS newer
    WHERE newer.variant_id = results.variant_id AND newer.case_id = results.case_id
         AND newer.device_id = results.device_id
      AND newer.kind = results.kind AND newer.ordinal = results.ordinal AND newer.commit_id = results.commit_id
      AND newer.id > results.id)
ORDER BY results.ordinal, kind
"""


def read_history(
    session: Session, series_id: int, first: int | None = None, last: int | None = None, limit: int = 2000
) -> SeriesHistory | None:
    """The newest `limit` points of a series with ordinals between `first` and `last`, oldest first; None for an unknown
    series."""
    series = read_series(session, series_id)
    if series is None:
        return None
    bounds = {"series_id": series_id, "first": first or 0, "last": last if last is not None else 2**62}
    size = max(1, min(limit, MAX_POINTS))
    points = fetch(session, PointRow, _POINTS, limit=size, **bounds)
    if len(points) == size:
        bounds["first"] = points[0].ordinal  # Marks of commits that the points do not reach would stand alone.
    marks = fetch(session, StatusMark, _MARKS, **bounds)
    return SeriesHistory(series, points, marks, _environments(session, {point.environment_id for point in points}))


def _environments(session: Session, ids: set[int]) -> dict[int, dict[str, Any]]:
    found = session.execute(text("SELECT id, facts FROM environments WHERE id = ANY(:ids)"), {"ids": list(ids)})
    return {row.id: row.facts for row in found}


def list_readings(session: Session, series_id: int, limit: int = MAX_POINTS) -> list[ReadingRow]:
    """What the newest right runs of a series measured, several per commit where it was repeated; in order of history,
    then of time."""
    sql = """
    SELECT commits.sha AS commit_sha, newest.commit_id, newest.ordinal, newest.environment_id,
         devices.kind AS device_kind,
           median_ns, low_ns, high_ns
    FROM (
        SELECT points.* FROM points JOIN results ON results.id = points.result_id
        WHERE series_id = :series_id AND results.status = 'ok' ORDER BY points.ordinal DESC, points.id DESC LIMIT :limit
    ) AS newest
    JOIN commits ON commits.id = newest.commit_id
    JOIN series ON series.id = newest.series_id
    JOIN devices ON devices.id = series.device_id
    ORDER BY newest.ordinal, newest.commit_id, newest.id
    """
    return fetch(session, ReadingRow, sql, series_id=series_id, limit=limit)


def read_samples(session: Session, point_id: int) -> PointSamples | None:
    """Every kept sample of a point, in the order they were taken; None for an unknown point."""
    sql = """
    SELECT points.id, series_id, commits.sha AS commit_sha, median_ns, low_ns, high_ns, dropped, samples.data,
           results.details -> 'distributions' -> series.metric AS distribution
    FROM points JOIN commits ON commits.id = points.commit_id JOIN series ON series.id = points.series_id
    JOIN results ON results.id = points.result_id LEFT JOIN samples ON samples.point_id = points.id
    WHERE points.id = :id
    """
    return fetch_one(session, _point_samples, sql, id=point_id)


def _point_samples(data: bytes | None, **fields: Any) -> PointSamples:
    return PointSamples(samples_ns=[] if data is None else unpack_samples(data), **fields)
