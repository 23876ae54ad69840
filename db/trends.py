"""Trends: how operators moved over the newest measured commits of a line, and the work under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from json import dumps
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.reads.lines import HistoryLine, on_line
from warpwatch.db.reads.query import PRIMARY_METRIC, fetch, fetch_one, fetch_scalar
from warpwatch.db.watches import is_watched


@dataclass(frozen=True, slots=True)
class TrendCommit:
    """A commit of the line with a point on the device."""

    id: int
    sha: str
    subject: str
    authored_at: datetime
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class TrendCell:
    """An operator at a commit. change: the geometric mean, over its series, of the median over the median at the
    previous measured commit in the same environment; None where no series has one.

    compared: how many series have one. series_id: the series that changed most.
    """

    operator: str
    commit_id: int
    change: float | None
    compared: int
    series_id: int
    measured_at: datetime


@dataclass(frozen=True, slots=True)
class TrendGrid:
    """Commits, oldest first, and a cell for every operator that was measured at one of them."""

    commits: list[TrendCommit]
    cells: list[TrendCell]


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that runs now. progress: done, total and text, once its worker has reported.

    regression: the regression that it decides on, where Warpwatch itself asked for it.
    """

    id: int
    submission_id: int
    regression: int | None
    kind: str
    operator: str
    commit_sha: str
    device_name: str
    progress: dict[str, Any] | None
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """The open jobs of a repository. submission_id: the submission that is told of, of whose jobs `ended` have ended: a
    person's before Warpwatch's own, one that is measured before one that waits. is_running: whether it is measured now.
    regression: the regression that it decides on, of the operator `operator`, where Warpwatch itself asked for it.

    newest_run: the run that ended last, of any repository: when it changes, there may be new results.
    """

    queued: int
    running: int
    submission_id: int | None
    is_running: bool
    regression: int | None
    operator: str | None
    total: int
    ended: int
    newest_run: int


SHOWN_COMMITS = 30
"""Commits of the overview's heat map."""
OLDER_COMMITS = 30
"""Commits before these, evenly spread over all of history, that a sparkline reaches back to."""
MOST_RUNNING = 8
"""Running jobs that are listed; the page of jobs has all."""

# The first point is enough. EXISTS would be planned as if all points of a commit were read.
_HAS_POINT = """
CROSS JOIN LATERAL (
    SELECT FROM points JOIN series ON series.id = points.series_id
    WHERE points.commit_id = commits.id AND series.device_id = :device_id AND series.metric = :metric LIMIT 1
) AS measured
"""
_COMMITS = f"""
SELECT commits.id, commits.sha, commits.subject, commits.authored_at, commits.ordinal FROM commits {_HAS_POINT}
WHERE repository_id = :repository_id AND {on_line("commits.id")} ORDER BY ordinal DESC, id DESC LIMIT :limit
"""
# The tallies of commits say which have points at all, so that only those of the sample are probed.
_OLDER_COMMITS = f"""
SELECT commits.id, sha, subject, authored_at, ordinal FROM (
    SELECT *, row_number() OVER (ORDER BY ordinal, id) AS place, count(*) OVER () AS total FROM (
        SELECT id, sha, subject, authored_at, ordinal FROM commits
        WHERE repository_id = :repository_id AND ordinal < :before AND {on_line("commits.id")}
          AND (counts IS NULL OR (counts ->> 'points')::int > 0)
    ) AS older
) AS commits {_HAS_POINT}
WHERE (place - 1) % greatest(1, ceil(total / {OLDER_COMMITS}.0)::int) = 0
ORDER BY ordinal, id
"""

# Each commit is one place in the index of a series, so the cost grows with the series and not with the history. Each
# series is compared by itself, and the largest change is found as an array, so that nothing sorts the points of all.
_CELLS = f"""
WITH chosen AS (
    SELECT DISTINCT ON (series.operator_id, case_id, variant_id) series.id, operators.name AS operator
    FROM operators JOIN series ON series.operator_id = operators.id
    JOIN cases ON cases.id = series.case_id
    WHERE operators.id = ANY(:operator_ids) AND series.device_id = :device_id AND series.metric = :metric
      AND (CAST(:suite AS text) IS NULL OR cases.suites ? CAST(:suite AS text))
      AND {is_watched("operators.id", "cases.id")}
    ORDER BY series.operator_id, case_id, variant_id, series.id DESC
), moved AS (
    SELECT chosen.id, chosen.operator, compared.* FROM chosen CROSS JOIN LATERAL (
        SELECT commit_id, measured_at,
               ln(median_ns / lag(median_ns) OVER (PARTITION BY environment_id, card_id ORDER BY ordinal, commit_id))
                    AS moved
        FROM (
            SELECT DISTINCT ON (ordinal, commit_id) ordinal, commit_id, environment_id, card_id, median_ns,
                   measured_at
            FROM commits JOIN points USING (ordinal)
            WHERE commits.id = ANY(:commits) AND points.series_id = chosen.id AND points.commit_id = commits.id
            ORDER BY ordinal, commit_id, points.id DESC
        ) AS newest
    ) AS compared
)
SELECT operator, commit_id, exp(avg(moved)) AS change, count(moved) AS compared,
       CAST((max(ARRAY[coalesce(abs(moved), -1), id]))[2] AS bigint) AS series_id, max(measured_at) AS measured_at
FROM moved GROUP BY operator, commit_id ORDER BY operator, commit_id
"""


_KEPT = """
SELECT operators.id, operators.name AS operator, trends.cells FROM operators
LEFT JOIN trends ON trends.operator_id = operators.id AND trends.device_id = :device_id AND trends.metric = :metric
     AND trends.commit_ids = CAST(:commits AS jsonb)
WHERE operators.repository_id = :repository_id
"""


@dataclass(frozen=True, slots=True)
class OperatorTrend:
    """Stored trend of an operator; see db.trends. cells: the fields of each TrendCell but the operator's name; None
    where no trend is stored for these commits."""

    id: int
    operator: str
    cells: list[list[Any]] | None


def read_trends(
    session: Session,
    repository_id: int,
    device_id: int,
    metric: str,
    line: HistoryLine,
    suite: str | None = None,
    limit: int = SHOWN_COMMITS,
    watcher: str | None = None,
    *,
    whole: bool = False,
) -> TrendGrid:
    """The newest `limit` commits of a line that were measured on the device, and how each operator moved at them.

    whole: whether a sample of all commits before comes along; each is held against the one before it in the sample.
    """
    commits = list_trend_commits(session, repository_id, device_id, metric, line, limit)
    shown = commits if whole else commits[-limit:]
    asked = [commit.id for commit in commits]
    kept = list_kept(session, repository_id, device_id, metric, asked)
    if suite is not None or watcher is not None:
        # What is kept counts all cases.
        kept = [OperatorTrend(row.id, row.operator, None) for row in kept]
    missing = [row.id for row in kept if row.cells is None]
    cells = [
        TrendCell(row.operator, commit_id, change, compared, series_id, datetime.fromisoformat(measured_at))
        for row in kept
        for commit_id, change, compared, series_id, measured_at in row.cells or []
    ]
    if missing:
        cells += compare_operators(session, missing, device_id, metric, asked, suite, watcher)
    ids = {commit.id for commit in shown}
    cells = [cell for cell in cells if cell.commit_id in ids]
    return TrendGrid(shown, sorted(cells, key=lambda cell: (cell.operator, cell.commit_id)))


def list_trend_commits(
    session: Session, repository_id: int, device_id: int, metric: str, line: HistoryLine, limit: int = SHOWN_COMMITS
) -> list[TrendCommit]:
    """The newest commits of a line with a point on the device, oldest first, after a sample of those before. One more
    than `limit`, so that the oldest one that is shown has something to be compared with."""
    of_device = {"repository_id": repository_id, "device_id": device_id, "metric": metric, **line.parameters}
    newest = fetch(session, TrendCommit, _COMMITS, limit=limit + 1, **of_device)[::-1]
    if len(newest) <= limit:
        return newest
    return fetch(session, TrendCommit, _OLDER_COMMITS, before=newest[0].ordinal, **of_device) + newest


def list_kept(
    session: Session, repository_id: int, device_id: int, metric: str, commit_ids: Sequence[int]
) -> list[OperatorTrend]:
    """Every operator of a repository, with what is kept of it for just these commits."""
    asked = {"device_id": device_id, "metric": metric, "commits": dumps(list(commit_ids))}
    return fetch(session, OperatorTrend, _KEPT, repository_id=repository_id, **asked)


def compare_operators(
    session: Session,
    operator_ids: Sequence[int],
    device_id: int,
    metric: str,
    commit_ids: Sequence[int],
    suite: str | None = None,
    watcher: str | None = None,
) -> list[TrendCell]:
    """How each of these operators moved from one of the commits to the next, from its points."""
    asked = {"suite": suite, "watcher": watcher, "commits": list(commit_ids), "operator_ids": list(operator_ids)}
    return fetch(session, TrendCell, _CELLS, device_id=device_id, metric=metric, **asked)


_RUNNING = """
SELECT jobs.id, jobs.submission_id, trials.regression_id AS regression, jobs.kind, operators.name AS operator,
       commits.sha AS commit_sha, devices.name AS device_name, jobs.progress, jobs.started_at
FROM jobs JOIN operators ON operators.id = jobs.operator_id JOIN commits ON commits.id = jobs.commit_id
JOIN devices ON devices.id = jobs.device_id LEFT JOIN trials ON trials.job_id = jobs.id
WHERE jobs.state = 'running' AND operators.repository_id = :repository_id ORDER BY jobs.id LIMIT :limit
"""

_QUEUE = """
WITH open_jobs AS (
    SELECT jobs.id, jobs.state, jobs.submission_id, trials.regression_id, operators.name AS operator
    FROM jobs JOIN operators ON operators.id = jobs.operator_id LEFT JOIN trials ON trials.job_id = jobs.id
    WHERE jobs.state IN ('queued', 'running') AND operators.repository_id = :repository_id
), told AS (
    SELECT submission_id, state = 'running' AS is_running, regression_id, operator FROM open_jobs
    ORDER BY regression_id IS NOT NULL, state = 'running' DESC, id LIMIT 1
)
SELECT counted.queued, counted.running, told.submission_id, coalesce(told.is_running, false) AS is_running,
       told.regression_id AS regression, told.operator,
       (SELECT count(*) FROM jobs WHERE jobs.submission_id = told.submission_id) AS total,
       (SELECT count(*) FROM jobs WHERE jobs.submission_id = told.submission_id
        AND jobs.state NOT IN ('queued', 'running')) AS ended,
       coalesce((SELECT id FROM runs WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT 1), 0) AS newest_run
FROM (SELECT count(*) FILTER (WHERE state = 'queued') AS queued, count(*) FILTER (WHERE state = 'running') AS running
      FROM open_jobs) AS counted
LEFT JOIN told ON true
"""


def list_running(session: Session, repository_id: int) -> list[RunningJob]:
    """The jobs of a repository that run now, the oldest first; at most MOST_RUNNING."""
    return fetch(session, RunningJob, _RUNNING, repository_id=repository_id, limit=MOST_RUNNING)


def read_queue(session: Session, repository_id: int) -> QueueSummary:
    """How much of a repository's work is open."""
    summary = fetch_one(session, QueueSummary, _QUEUE, repository_id=repository_id)
    assert summary is not None
    return summary


@dataclass(frozen=True, slots=True)
class RecentPoint:
    """The newest point of a series at one commit."""

    series_id: int
    commit_id: int
    ordinal: int
    environment_id: int
    median_ns: float
    card_id: int | None = None


@dataclass(frozen=True, slots=True)
class ReleaseTime:
    """The median of a series at the newest release, which is a commit with a tag."""

    series_id: int
    sha: str
    tags: list[str]
    median_ns: float


_RECENT = f"""
SELECT newest.* FROM unnest(CAST(:ids AS bigint[])) AS wanted(id) CROSS JOIN LATERAL (
    SELECT DISTINCT ON (ordinal, commit_id) series_id, commit_id, ordinal, environment_id, median_ns, card_id
    FROM points WHERE series_id = wanted.id AND {on_line("points.commit_id")}
    ORDER BY ordinal DESC, commit_id DESC, id DESC LIMIT :limit
) AS newest
ORDER BY newest.series_id, newest.ordinal, newest.commit_id
"""

_RELEASE = f"""
WITH release AS (
    SELECT commits.id, commits.sha, commits.tags FROM commits
    WHERE repository_id = :repository_id AND tags <> '[]' AND {on_line("commits.id")}
      AND EXISTS (SELECT FROM points WHERE points.commit_id = commits.id AND points.series_id = ANY(:ids))
    ORDER BY ordinal DESC, id DESC LIMIT 1
)
SELECT DISTINCT ON (points.series_id) points.series_id, release.sha, release.tags, points.median_ns
FROM release JOIN points ON points.commit_id = release.id WHERE points.series_id = ANY(:ids)
ORDER BY points.series_id, points.id DESC
"""


def list_recent_points(
    session: Session, series_ids: list[int], line: HistoryLine, limit: int = 40
) -> list[RecentPoint]:
    """The newest `limit` points of each series on a line, oldest first."""
    return fetch(session, RecentPoint, _RECENT, ids=series_ids, limit=limit, **line.parameters)


def list_release_times(
    session: Session, repository_id: int, series_ids: list[int], line: HistoryLine
) -> list[ReleaseTime]:
    """The times of the series at the newest tagged commit of a line that has a point of any of these series."""
    return fetch(session, ReleaseTime, _RELEASE, repository_id=repository_id, ids=series_ids, **line.parameters)


_SCOPES = f"""
SELECT DISTINCT operators.repository_id, device.id AS device_id, series.metric
FROM series JOIN operators ON operators.id = series.operator_id JOIN devices AS device ON device.id = series.device_id
WHERE series.metric = {PRIMARY_METRIC} ORDER BY operators.repository_id, device.id
"""
_NEWEST_RUN = "SELECT id FROM runs WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT 1"
# Every row of results that is inserted locks its operator until its transaction ends, because it refers to it. So
# whoever has this lock sees all results or is passed over, and results that come later wait, and forget what is kept.
_LOCK_OPERATOR = "SELECT id FROM operators WHERE id = :id FOR UPDATE SKIP LOCKED"
_KEEP = """
INSERT INTO trends (operator_id, device_id, metric, commit_ids, cells)
VALUES (:operator_id, :device_id, :metric, CAST(:commits AS jsonb), CAST(:cells AS jsonb))
ON CONFLICT (operator_id, device_id, metric) DO UPDATE SET commit_ids = excluded.commit_ids, cells = excluded.cells
"""
_FORGET = "DELETE FROM trends WHERE operator_id = :operator_id AND device_id = :device_id"


@dataclass(frozen=True, slots=True)
class TrendScope:
    """A repository on a device, with the metric that the overview shows first."""

    repository_id: int
    device_id: int
    metric: str


def list_trend_scopes(s: Session) -> list[TrendScope]:
    return fetch(s, TrendScope, _SCOPES)


def find_newest_run(s: Session) -> int | None:
    """The run that ended last: when it changes, there may be new results."""
    run_id: int | None = fetch_scalar(s, _NEWEST_RUN)
    return run_id


def keep_trend(s: Session, operator_id: int, device_id: int, metric: str, commit_ids: Sequence[int]) -> bool:
    """Compares the operator at these commits and keeps the answer; False when somebody writes its results just now."""
    if s.scalar(text(_LOCK_OPERATOR), {"id": operator_id}) is None:
        return False
    cells = compare_operators(s, [operator_id], device_id, metric, commit_ids)
    rows = [[*astuple(cell)[1:-1], cell.measured_at.isoformat()] for cell in cells]
    values = {"operator_id": operator_id, "device_id": device_id, "metric": metric}
    s.execute(text(_KEEP), values | {"commits": dumps(list(commit_ids)), "cells": dumps(rows)})
    return True


def forget_trends(s: Session, operator_id: int, device_id: int) -> None:
    """Says that this transaction has changed results of the operator on the device, and that it holds a lock of the
    operator, as whoever inserts results does."""
    s.execute(text(_FORGET), {"operator_id": operator_id, "device_id": device_id})
