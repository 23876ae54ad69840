"""Reads series: their list, their points over commits, and the samples behind a point."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.cards import OffsetRow, list_agreed_cards, read_card_names
from warpwatch.db.columns import unpack_samples
from warpwatch.db.environment_changes import EnvironmentStep, list_series_steps
from warpwatch.db.reads.lines import HistoryLine, on_line
from warpwatch.db.reads.query import SIGNAL, Page, fetch, fetch_one, fetch_page
from warpwatch.db.regressions import COMMITS_BETWEEN, IS_UNPAIRED, ON_LINE, PHASE


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """is_declared: whether the operator declares the case; a person asked for any other by its sizes."""

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
    is_declared: bool = True


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
    card_id: int | None = None
    """The physical card that took it; a commit has a point of each card and of each environment that measured it."""


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
    subject: str = ""
    author: str = ""
    authored_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SidePoint:
    """A point of another branch. fork_sha: the commit of the watched branch at which that branch left it."""

    id: int
    branch: str
    commit_sha: str
    ordinal: int
    fork_sha: str | None
    fork_ordinal: int | None
    subject: str
    author: str
    authored_at: datetime
    environment_id: int
    median_ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True, slots=True)
class SeriesChange:
    """A confirmed or unpaired change that a series shows, between two commits of the line.

    ratio: head over base of this series. signal: contract.words.Signal, None where its cell has one alone.
    phase: contract.words.ChangePhase. commits: how many may have caused it. fixed_by_sha: the commit that ended it.
    """

    regression_id: int
    direction: str
    phase: str
    ratio: float | None
    low: float | None
    high: float | None
    base_sha: str
    base_ordinal: int
    head_sha: str
    head_ordinal: int
    commits: int
    fixed_by_sha: str | None
    signal: str | None = None


@dataclass(frozen=True, slots=True)
class ReadingRow:
    """Measurement of one series in one run.

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
    card_id: int | None = None
    metric: str = ""
    protocol: str = ""


@dataclass(frozen=True, slots=True)
class SeriesHistory:
    series: SeriesRow
    points: list[PointRow]
    marks: list[StatusMark]
    environments: dict[int, dict[str, Any]]
    """Environment id to facts."""
    branch: str | None = None
    """Whose points these are; None where no branch is known, so that every commit counts."""
    changes: list[SeriesChange] = field(default_factory=list)
    side: list[SidePoint] = field(default_factory=list)
    """Points of other branches, where they were asked for."""
    cards: dict[int, str] = field(default_factory=dict)
    """Card id to short name."""
    agreed: list[OffsetRow] = field(default_factory=list)
    """Cards whose readings make one line, with what shows their offset."""
    steps: list[EnvironmentStep] = field(default_factory=list)
    """Where the environment changed, and by how much the series stepped there."""


MAX_POINTS = 5000
"""Points that one history may hold."""

_SERIES = """
SELECT series.id, repositories.name AS repository, operators.name AS operator, cases.key AS case,
     variants.name AS variant,
       devices.key AS device_key, devices.name AS device_name, metric, protocol, cases.flops, cases.bytes,
       cases.suites <> '[]' AS is_declared
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


_POINTS = f"""
SELECT newest.id, commits.sha AS commit_sha, newest.ordinal, subject, author, authored_at, newest.environment_id,
       median_ns, low_ns, high_ns, noise, count, roofline_share, bound, result_id,
       results.details -> 'distributions' -> (SELECT metric FROM series WHERE id = :series_id) AS distribution,
       newest.card_id
FROM (
    SELECT DISTINCT ON (ordinal, commit_id, card_id, environment_id) * FROM points
    WHERE series_id = :series_id AND ordinal BETWEEN :first AND :last AND {on_line("points.commit_id")}
    ORDER BY ordinal DESC, commit_id DESC, card_id DESC, environment_id DESC, id DESC LIMIT :limit
) AS newest
JOIN commits ON commits.id = newest.commit_id
JOIN results ON results.id = newest.result_id
ORDER BY newest.ordinal, newest.commit_id, newest.id
"""

_MARKS = f"""
SELECT commits.sha AS commit_sha, results.ordinal, kind, status, message, subject, author, authored_at
FROM series
JOIN results ON series.variant_id = results.variant_id AND series.case_id = results.case_id
     AND series.device_id = results.device_id
JOIN commits ON commits.id = results.commit_id
WHERE series.id = :series_id AND results.kind IN ('check', 'bench') AND results.ordinal BETWEEN :first AND :last
  AND status <> 'ok' AND {on_line("results.commit_id")} AND NOT EXISTS (
    SELECT FROM results AS newer
    WHERE newer.variant_id = results.variant_id AND newer.case_id = results.case_id
         AND newer.device_id = results.device_id
      AND newer.kind = results.kind AND newer.ordinal = results.ordinal AND newer.commit_id = results.commit_id
      AND newer.id > results.id)
ORDER BY results.ordinal, kind
"""


_SIDE = f"""
SELECT DISTINCT ON (points.ordinal, points.commit_id) points.id, branches.name AS branch, commits.sha AS commit_sha,
       points.ordinal, branches.fork_sha, fork.ordinal AS fork_ordinal, commits.subject,
       commits.author, commits.authored_at, environment_id,
       median_ns, low_ns, high_ns
FROM points JOIN commits ON commits.id = points.commit_id
JOIN branch_commits ON branch_commits.commit_id = commits.id
JOIN branches ON branches.id = branch_commits.branch_id AND NOT branches.is_watched
LEFT JOIN commits AS fork ON fork.repository_id = commits.repository_id AND fork.sha = branches.fork_sha
WHERE points.series_id = :series_id AND points.ordinal BETWEEN :first AND :last AND NOT {on_line("points.commit_id")}
ORDER BY points.ordinal DESC, points.commit_id DESC, points.id DESC, branches.id LIMIT :limit
"""

_CHANGES = f"""
SELECT regressions.id AS regression_id, regressions.direction, {PHASE} AS phase,
       coalesce(member.ratio, member.suspected_ratio) AS ratio, member.low, member.high,
       base.sha AS base_sha, base.ordinal AS base_ordinal, head.sha AS head_sha, head.ordinal AS head_ordinal,
       {COMMITS_BETWEEN} + 1 AS commits,
       (SELECT sha FROM commits WHERE commits.id = regressions.fixed_by_commit_id) AS fixed_by_sha,
       {SIGNAL} AS signal
FROM regression_series AS member JOIN regressions ON regressions.id = member.regression_id
JOIN series ON series.id = member.series_id
JOIN commits AS base ON base.id = regressions.base_commit_id
JOIN commits AS head ON head.id = regressions.head_commit_id
WHERE member.series_id = :series_id
  AND ((member.verdict = 'confirmed' AND regressions.verdict = 'confirmed') OR {IS_UNPAIRED})
  AND regressions.state <> 'invalid' AND head.ordinal >= :first AND base.ordinal <= :last AND {ON_LINE}
ORDER BY head.ordinal DESC, regressions.id DESC LIMIT :limit
"""
MAX_SIDE_POINTS, MAX_CHANGES = 200, 100
"""Points of other branches, and confirmed changes, that one history may hold; the newest count."""


def read_history(
    session: Session,
    series_id: int,
    line: HistoryLine,
    first: int | None = None,
    last: int | None = None,
    limit: int = 2000,
    *,
    branches: bool = False,
) -> SeriesHistory | None:
    """The newest `limit` points of a series on a line with ordinals between `first` and `last`, oldest first; None for
    an unknown series. branches: whether points of other branches come along."""
    series = read_series(session, series_id)
    if series is None:
        return None
    bounds: dict[str, Any] = {"series_id": series_id, "first": first or 0, "last": last if last is not None else 2**62}
    bounds |= line.parameters
    size = max(1, min(limit, MAX_POINTS))
    points = fetch(session, PointRow, _POINTS, limit=size, **bounds)
    if len(points) == size:
        bounds["first"] = points[0].ordinal  # Marks of commits that the points do not reach would stand alone.
    marks = fetch(session, StatusMark, _MARKS, **bounds)
    side = fetch(session, SidePoint, _SIDE, limit=MAX_SIDE_POINTS, **bounds) if branches and line.line_id else []
    changes = fetch(session, SeriesChange, _CHANGES, limit=MAX_CHANGES, **bounds)[::-1]
    ids = {point.environment_id for point in points}
    cards = read_card_names(session, {point.card_id for point in points if point.card_id is not None})
    agreed = list_agreed_cards(session, series_id) if len(cards) > 1 else []
    rows = session.execute(text("SELECT id, facts FROM environments WHERE id = ANY(:ids)"), {"ids": list(ids)})
    environments = {row.id: row.facts for row in rows}
    steps = list_series_steps(session, series_id, line, bounds["first"], bounds["last"])
    return SeriesHistory(series, points, marks, environments, line.name, changes, side[::-1], cards, agreed, steps)


def list_readings(session: Session, series_id: int, line: HistoryLine, limit: int = MAX_POINTS) -> list[ReadingRow]:
    """The measurements of the newest right runs of a series on a line, several for a commit that was measured several
    times; in order of history, then of time."""
    sql = f"""
    SELECT commits.sha AS commit_sha, newest.commit_id, newest.ordinal, newest.environment_id,
         devices.kind AS device_kind,
           median_ns, low_ns, high_ns, newest.card_id, series.metric, series.protocol
    FROM (
        SELECT points.* FROM points JOIN results ON results.id = points.result_id
        WHERE series_id = :series_id AND results.status = 'ok' AND {on_line("points.commit_id")}
        ORDER BY points.ordinal DESC, points.id DESC LIMIT :limit
    ) AS newest
    JOIN commits ON commits.id = newest.commit_id
    JOIN series ON series.id = newest.series_id
    JOIN devices ON devices.id = series.device_id
    ORDER BY newest.ordinal, newest.commit_id, newest.id
    """
    return fetch(session, ReadingRow, sql, series_id=series_id, limit=limit, **line.parameters)


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


def list_samples(session: Session, point_ids: list[int]) -> dict[int, list[float]]:
    """The kept samples of several points, by point id; a point without samples is left out."""
    found = session.execute(text("SELECT point_id, data FROM samples WHERE point_id = ANY(:ids)"), {"ids": point_ids})
    return {row.point_id: unpack_samples(row.data) for row in found}


def _point_samples(data: bytes | None, **fields: Any) -> PointSamples:
    return PointSamples(samples_ns=[] if data is None else unpack_samples(data), **fields)
