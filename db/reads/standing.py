"""Reads how a line of history stands: how many changes are open or suspected, and where its verdicts lie."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from warpwatch.db.reads.lines import HistoryLine, on_line
from warpwatch.db.reads.query import fetch
from warpwatch.db.regressions import CAN_CONFIRM, IS_OPEN, IS_SUSPECTED, ON_LINE, PHASE, WORST_SIGNAL
from warpwatch.db.watches import is_watched

TIMELINE_COMMITS = 400
"""Newest commits of a line that the timeline of verdicts shows."""
MOST_MARKS = 400
"""Newest verdicts that it shows."""


@dataclass(frozen=True, slots=True)
class StandingCounts:
    """open: confirmed changes for the worse that are neither fixed nor closed. suspected: changes, either way, that no
    trial decided; unconfirmable: those of them that no trial can decide here."""

    open: int
    suspected: int
    unconfirmable: int


@dataclass(frozen=True, slots=True)
class VerdictMark:
    """A confirmed or suspected change on a device, at the newest commit that may have caused it.

    ratio: of its worst series, or what later changes left of it there; signal: contract.words.Signal of that series.
    series: how many show it.
    """

    regression_id: int
    operator: str
    head_sha: str
    ordinal: int
    direction: str
    phase: str
    ratio: float | None
    can_confirm: bool
    series: int
    signal: str | None = None


_COUNTS = f"""
SELECT count(*) FILTER (WHERE {IS_OPEN} AND direction <> 'faster') AS open,
       count(*) FILTER (WHERE {IS_SUSPECTED}) AS suspected,
       count(*) FILTER (WHERE {IS_SUSPECTED} AND NOT {CAN_CONFIRM}) AS unconfirmable
FROM regressions
JOIN commits AS base ON base.id = regressions.base_commit_id
JOIN commits AS head ON head.id = regressions.head_commit_id
WHERE regressions.operator_id IN (SELECT id FROM operators WHERE repository_id = :repository_id
                                  AND (CAST(:operator AS text) IS NULL OR name = :operator))
  AND regressions.verdict IN ('confirmed', 'suspected') AND regressions.state IN ('new', 'acknowledged')
  AND (CAST(:watcher AS text) IS NULL OR EXISTS (
    SELECT FROM regression_series AS member JOIN series ON series.id = member.series_id
    WHERE member.regression_id = regressions.id AND {is_watched("series.operator_id", "series.case_id")}))
  AND {ON_LINE}
"""
_COMMITS = f"""
SELECT ordinal FROM commits WHERE repository_id = :repository_id AND {on_line("commits.id")}
ORDER BY ordinal DESC, id DESC LIMIT {TIMELINE_COMMITS}
"""
_MARKS = f"""
SELECT regressions.id AS regression_id, operators.name AS operator, head.sha AS head_sha, head.ordinal,
       regressions.direction, {PHASE} AS phase, coalesce(regressions.left_ratio, regressions.ratio) AS ratio,
       {CAN_CONFIRM} AS can_confirm,
       (SELECT count(*) FROM regression_series AS shown WHERE shown.regression_id = regressions.id
          AND (regressions.verdict <> 'confirmed' OR shown.verdict = 'confirmed')) AS series,
       {WORST_SIGNAL} AS signal
FROM regressions JOIN operators ON operators.id = regressions.operator_id
JOIN commits AS base ON base.id = regressions.base_commit_id
JOIN commits AS head ON head.id = regressions.head_commit_id
WHERE operators.repository_id = :repository_id AND regressions.device_id = :device_id
  AND (regressions.verdict = 'confirmed' OR {IS_SUSPECTED}) AND regressions.state <> 'invalid'
  AND {ON_LINE} ORDER BY head.ordinal DESC, regressions.id DESC LIMIT {MOST_MARKS}
"""


def count_standing(
    session: Session, repository_id: int, line: HistoryLine, operator: str | None = None, watcher: str | None = None
) -> StandingCounts:
    """The open and suspected changes of a line; of one operator, or of what a person watches, where they are named."""
    parameters = {"repository_id": repository_id, "operator": operator, "watcher": watcher, **line.parameters}
    return fetch(session, StandingCounts, _COUNTS, **parameters)[0]


def list_timeline_ordinals(session: Session, repository_id: int, line: HistoryLine) -> list[int]:
    """The ordinals of the newest commits of a line, oldest first."""
    rows = fetch(session, lambda ordinal: ordinal, _COMMITS, repository_id=repository_id, **line.parameters)
    return [int(ordinal) for ordinal in rows[::-1]]


def list_verdict_marks(session: Session, repository_id: int, device_id: int, line: HistoryLine) -> list[VerdictMark]:
    """The newest verdicts of a line on a device, oldest first."""
    parameters = {"repository_id": repository_id, "device_id": device_id, **line.parameters}
    return fetch(session, VerdictMark, _MARKS, **parameters)[::-1]
