"""Reads events: regressions that one cause explains, worst first; and how good the alarms were."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.reads.lines import HistoryLine
from warpwatch.db.reads.query import MAX_PAGE, Page, fetch
from warpwatch.db.regressions import (
    COLUMNS,
    IS_UNPAIRED,
    ON_LINE,
    RANK,
    SEVERITY,
    SUPERSEDED,
    TABLES,
    RegressionFilter,
    RegressionRow,
)


@dataclass(frozen=True, slots=True)
class EventRow:
    """Effects of one cause: changes in one direction and one range of commits, or in ranges that lie inside each other.

    id, ratio and the range are those of the worst regression of the event. open: number of its regressions that are new
    or acknowledged. culprit_sha: the commit behind the event, None while no commit is known to be the cause. common:
    properties that all changed series share and no unchanged series has, in words; empty where no simple property tells
    changed and unchanged series apart.
    """

    id: int
    direction: str
    ratio: float | None
    base_sha: str
    head_sha: str
    head_subject: str
    head_author: str
    commits_between: int
    open: int
    operators: list[str]
    devices: list[str]
    regressions: list[RegressionRow]
    common: str = ""
    culprit_sha: str | None = None


@dataclass(frozen=True, slots=True)
class QualityRow:
    """How good suspicions of one period were, and how quickly somebody looked; None in `since` and `until` for all
    time.

    triaged: of the confirmed ones, those that a person said something of. decide_seconds: median from the end of the
    first job at the head commit to the decision. triage_seconds: median from the decision to the first word of a
    person. None where there is none.
    """

    since: datetime | None
    until: datetime | None
    suspected: int
    confirmed: int
    dismissed: int
    unsure: int
    waiting: int
    triaged: int
    decide_seconds: float | None
    triage_seconds: float | None


OPEN = ("new", "acknowledged")
"""States in which a regression waits for somebody."""


def _events(question: RegressionFilter) -> str:
    """SQL of the events that a question asks for, worst first.

    A range that is still wide belongs to the narrowest one inside it that is of one of its operators, and to all with
    the same head. What the filters leave out counts here too, so that an event is the same whatever is asked for.
    """
    return f"""
    WITH found AS MATERIALIZED (
        SELECT regressions.id, verdict, direction, base_commit_id, head_commit_id, base.ordinal AS base_at,
               head.ordinal AS head_at, {RANK} AS rank, {SEVERITY} AS severity
        FROM regressions
        JOIN commits AS base ON base.id = base_commit_id JOIN commits AS head ON head.id = head_commit_id
        WHERE {question.condition}
    ), wide AS MATERIALIZED (
        SELECT DISTINCT operator_id, base_commit_id, head_commit_id, verdict, direction, base_at, head_at
        FROM found JOIN regressions USING (base_commit_id, head_commit_id, verdict, direction)
        WHERE head_at - base_at > 1
    ), inside AS MATERIALIZED (
        SELECT wide.*, place FROM wide CROSS JOIN LATERAL generate_series(base_at + 1, head_at) AS place
    ), known AS MATERIALIZED (
        SELECT regressions.id, operator_id, verdict, direction, head_commit_id, base.ordinal AS base_at,
               head.ordinal AS head_at
        FROM regressions
        JOIN commits AS base ON base.id = base_commit_id JOIN commits AS head ON head.id = head_commit_id
        WHERE (verdict, direction) IN (SELECT verdict, direction FROM wide)
          AND operator_id IN (SELECT id FROM operators WHERE repository_id = :repository_id) AND {ON_LINE}
    ), narrowed AS (
        SELECT DISTINCT ON (base_commit_id, inside.head_commit_id, verdict, direction)
               base_commit_id, inside.head_commit_id, verdict, direction, narrow.head_commit_id AS event_head
        FROM inside JOIN known AS narrow USING (operator_id, verdict, direction)
        WHERE narrow.head_at = place AND narrow.base_at >= inside.base_at
          AND narrow.head_at - narrow.base_at < inside.head_at - inside.base_at
        ORDER BY base_commit_id, inside.head_commit_id, verdict, direction, narrow.head_at - narrow.base_at,
             narrow.head_at DESC, narrow.id
    )
    SELECT coalesce(narrowed.event_head, found.head_commit_id) AS head_id, verdict, direction,
           array_agg(found.id ORDER BY severity DESC, found.id) AS ids
    FROM found LEFT JOIN narrowed USING (base_commit_id, head_commit_id, verdict, direction)
    GROUP BY 1, 2, 3 ORDER BY max(rank) DESC, max(severity) DESC, max(found.id) DESC LIMIT :limit OFFSET :skip
    """


class _Event(NamedTuple):
    head_id: int
    verdict: str
    direction: str
    ids: list[int]


def list_events(
    session: Session, repository_id: int, question: RegressionFilter, before: int | None = None, limit: int = 50
) -> Page[EventRow]:
    """Events with a regression that the question asks for, worst first; `before` is `next_before` of the page before.

    All regressions of an event have one verdict. An event is shown whole: also those of its regressions that the
    filters leave out.
    """
    size, skip = max(1, min(limit, MAX_PAGE)), before or 0
    asked = question.parameters | {"repository_id": repository_id}
    events = fetch(session, _Event, _events(question), limit=size + 1, skip=skip, **asked)
    shown = events[:size]
    return Page(_whole(session, shown), skip + size if len(events) > size else None)


def read_event(session: Session, repository_id: int, regression: RegressionRow) -> EventRow | None:
    """The event that a regression is part of; None when it is gone."""
    # All of one event holds the commit at the head of its narrowest range, so each overlaps every other.
    sql = """
    SELECT base.ordinal AS since, head.ordinal AS until, branches.id AS line_id, trunk.id AS trunk_id, branches.fork_at
    FROM regressions JOIN commits AS base ON base.id = base_commit_id JOIN commits AS head ON head.id = head_commit_id
    LEFT JOIN branches ON branches.repository_id = :repository_id AND branches.name = :branch
    LEFT JOIN branches AS trunk ON trunk.repository_id = :repository_id AND trunk.is_watched AND trunk.id <> branches.id
    WHERE regressions.id = :id
    """
    values = {"id": regression.id, "repository_id": repository_id, "branch": regression.branch}
    since, until, *place = session.execute(text(sql), values).one()
    line = HistoryLine(regression.branch, *place)
    question = RegressionFilter(regression.verdict, direction=regression.direction, since=since, until=until, line=line)
    sql = f"SELECT * FROM ({_events(question)}) AS events WHERE :id = ANY(ids)"
    asked = question.parameters | {"repository_id": repository_id}
    events = fetch(session, _Event, sql, limit=None, skip=0, id=regression.id, **asked)
    return next(iter(_whole(session, events)), None)


def _whole(session: Session, events: list[_Event]) -> list[EventRow]:
    """Events with all of their regressions."""
    sql = f"""
    SELECT regressions.head_commit_id, {COLUMNS} FROM {TABLES}
    WHERE regressions.id = ANY(:ids)
       OR (regressions.head_commit_id = ANY(:heads) AND NOT ({SUPERSEDED}))
    ORDER BY {SEVERITY} DESC, regressions.id
    """
    by_id = {number: place for place, event in enumerate(events) for number in event.ids}
    by_head = {(event.head_id, event.verdict, event.direction): place for place, event in enumerate(events)}
    members: list[list[RegressionRow]] = [[] for _ in events]

    def sort_in(head_commit_id: int, **columns: Any) -> None:
        row = RegressionRow(**columns)
        place = by_id.get(row.id, by_head.get((head_commit_id, row.verdict, row.direction)))
        if place is not None:
            members[place].append(row)

    fetch(session, sort_in, sql, ids=list(by_id), heads=[event.head_id for event in events])
    return [_event(rows) for rows in members]


def _event(rows: list[RegressionRow]) -> EventRow:
    """rows: worst first."""
    worst, narrowest = rows[0], min(rows, key=lambda row: row.commits_between)
    return EventRow(
        id=worst.id,
        direction=worst.direction,
        ratio=worst.ratio,
        base_sha=narrowest.base_sha,
        head_sha=narrowest.head_sha,
        head_subject=narrowest.head_subject,
        head_author=narrowest.head_author,
        commits_between=narrowest.commits_between,
        open=sum(row.state in OPEN for row in rows),
        operators=sorted({row.operator for row in rows}),
        devices=sorted({row.device_key for row in rows}),
        regressions=rows,
        culprit_sha=next((row.culprit_sha for row in rows if row.culprit_sha), None),
    )


def list_choices(session: Session, repository_id: int) -> dict[str, list[str]]:
    """The values of the filters for regressions: names of operators, keys of devices, assignees, watchers."""
    sql = """
    SELECT 'operator' AS what, name FROM operators WHERE repository_id = :repository_id
    UNION ALL SELECT 'device', key FROM devices
    UNION ALL SELECT DISTINCT 'assignee', assignee FROM regressions JOIN operators ON operators.id = operator_id
              WHERE repository_id = :repository_id AND assignee IS NOT NULL
    UNION ALL SELECT DISTINCT 'watcher', person FROM watches JOIN operators ON operators.id = operator_id
              WHERE repository_id = :repository_id
    ORDER BY name
    """
    choices: dict[str, list[str]] = {"operator": [], "device": [], "assignee": [], "watcher": []}
    for what, name in session.execute(text(sql), {"repository_id": repository_id}):
        choices[what].append(name)
    return choices


def find_ordinal(session: Session, repository_id: int, sha: str) -> int | None:
    """The ordinal of a commit, by its id or a unique prefix of it; None when it is not known or not unique."""
    sql = """
    SELECT ordinal FROM commits WHERE repository_id = :repository_id AND sha >= :sha AND sha < :sha || 'g' LIMIT 2
    """
    found = session.execute(text(sql), {"repository_id": repository_id, "sha": sha}).scalars().all()
    return found[0] if len(found) == 1 else None


def ordinal_at(session: Session, repository_id: int, moment: datetime) -> int:
    """Where the newest commit written before a moment stands in history; 0 when there is none."""
    sql = """
    SELECT ordinal FROM commits WHERE repository_id = :repository_id AND authored_at < :moment
    ORDER BY repository_id, ordinal DESC LIMIT 1
    """
    return session.execute(text(sql), {"repository_id": repository_id, "moment": moment}).scalar() or 0


# The end of the first job at the commit where it was first suspected: when somebody could have known.
_QUALITY = f"""
WITH told AS (
    SELECT verdict, triaged_at, decided_at, regressions.created_at,
           least(regressions.created_at, (
               SELECT min(jobs.finished_at) FROM jobs
               WHERE jobs.commit_id = coalesce(first.head_commit_id, regressions.head_commit_id)
                    AND jobs.kind IN ('bench', 'check')
                 AND jobs.operator_id = regressions.operator_id
                      AND jobs.device_id = regressions.device_id)) AS measured_at,
           floor(greatest(extract(epoch FROM CAST(:now AS timestamptz) - regressions.created_at),
                0) / :length) AS period
    FROM regressions JOIN operators ON operators.id = regressions.operator_id
    LEFT JOIN LATERAL (
        SELECT head_commit_id FROM trials WHERE trials.regression_id = regressions.id ORDER BY trials.id LIMIT 1
    ) AS first ON true
    WHERE operators.repository_id = :repository_id AND NOT ({SUPERSEDED})
      AND NOT {IS_UNPAIRED} AND NOT EXISTS (
        -- What was measured elsewhere says nothing of how fast this service decides.
        SELECT FROM trials JOIN jobs ON jobs.id = trials.job_id JOIN submissions ON submissions.id = jobs.submission_id
        WHERE trials.regression_id = regressions.id AND submissions.origin IN ('bundle', 'example'))
)
SELECT CASE WHEN period IS NOT NULL THEN CAST(:now AS timestamptz) - (period + 1) * make_interval(secs => :length) END
     AS since,
       CASE WHEN period IS NOT NULL THEN CAST(:now AS timestamptz) - period * make_interval(secs => :length) END AS
            until,
       count(*) AS suspected, count(*) FILTER (WHERE verdict = 'confirmed') AS confirmed,
       count(*) FILTER (WHERE verdict = 'dismissed') AS dismissed, count(*) FILTER (WHERE verdict = 'unsure') AS unsure,
       count(*) FILTER (WHERE verdict = 'suspected') AS waiting,
       count(*) FILTER (WHERE verdict = 'confirmed' AND triaged_at IS NOT NULL) AS triaged,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM decided_at - measured_at))
           FILTER (WHERE decided_at IS NOT NULL) AS decide_seconds,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY greatest(extract(epoch FROM triaged_at - decided_at), 0))
           FILTER (WHERE verdict = 'confirmed' AND triaged_at IS NOT NULL) AS triage_seconds
FROM told GROUP BY GROUPING SETS ((period), ()) HAVING count(*) > 0
ORDER BY period NULLS FIRST LIMIT :periods + 1
"""

PERIOD_SECONDS = 30 * 86400


def read_quality(session: Session, repository_id: int, now: datetime, periods: int = 6) -> list[QualityRow]:
    """All time first, then the newest periods of thirty days in which something was suspected; empty when nothing ever
    was."""
    return fetch(
        session, QualityRow, _QUALITY, repository_id=repository_id, now=now, length=PERIOD_SECONDS, periods=periods
    )
