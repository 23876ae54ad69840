"""Reads channels, what happened that they have not told, and how their messages fared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from warpwatch.contract.words import NoticeKind
from warpwatch.db.reads.query import Page, Session, fetch, fetch_one, fetch_page

LOOKBACK_HOURS = 24
"""What happened longer ago is not told any more, for instance after the service stood still."""


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """A place where people are told. url: without its secrets. person: only what this person watches; null for
    everything. quiet_from, quiet_until: hours of time_zone between which messages wait. waiting, given_up: messages."""

    id: int
    repository: str
    name: str
    service: str
    url: str
    has_secret: bool
    kinds: list[str]
    person: str | None
    quiet_from: int | None
    quiet_until: int | None
    time_zone: str
    created_at: datetime
    waiting: int
    given_up: int
    last_sent_at: datetime | None


_CHANNELS = """
SELECT channels.id, repositories.name AS repository, channels.name, service, shown_url AS url,
       secret IS NOT NULL AS has_secret, kinds, person, quiet_from, quiet_until, time_zone, channels.created_at,
       (SELECT count(*) FROM deliveries WHERE channel_id = channels.id AND sent_at IS NULL AND given_up_at IS NULL
        AND covered_by_id IS NULL) AS waiting,
       (SELECT count(*) FROM deliveries WHERE channel_id = channels.id AND given_up_at IS NOT NULL) AS given_up,
       (SELECT max(sent_at) FROM deliveries WHERE channel_id = channels.id) AS last_sent_at
FROM channels JOIN repositories ON repositories.id = channels.repository_id
"""


def list_channels(session: Session, repository_id: int, before: int | None = None, limit: int = 50) -> Page[ChannelRow]:
    """The channels of a repository, newest first."""
    sql = f"""
    {_CHANNELS} WHERE repository_id = :repository_id AND (CAST(:before AS bigint) IS NULL OR channels.id < :before)
    ORDER BY channels.id DESC LIMIT :limit
    """
    return fetch_page(session, ChannelRow, sql, limit, repository_id=repository_id, before=before)


def read_channel(session: Session, channel_id: int) -> ChannelRow | None:
    sql = f"{_CHANNELS} WHERE channels.id = :id AND repositories.deleted_at IS NULL"
    return fetch_one(session, ChannelRow, sql, id=channel_id)


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A message of a channel. outcome: sent | waiting | given up; error: what went wrong last."""

    id: int
    kind: str
    title: str
    text: str
    link: str
    outcome: str
    attempts: int
    error: str
    created_at: datetime
    sent_at: datetime | None
    next_at: datetime | None


def list_deliveries(session: Session, channel_id: int, before: int | None = None, limit: int = 50) -> Page[DeliveryRow]:
    """Messages of a channel, newest first."""
    sql = """
    SELECT id, kind, title, text, link,
           CASE WHEN sent_at IS NOT NULL THEN 'sent' WHEN given_up_at IS NOT NULL THEN 'given up' ELSE 'waiting' END
           AS outcome, attempts, message AS error, created_at, sent_at,
           CASE WHEN sent_at IS NULL AND given_up_at IS NULL THEN next_at END AS next_at
    FROM deliveries WHERE channel_id = :id AND covered_by_id IS NULL
      AND (CAST(:before AS bigint) IS NULL OR id < :before) ORDER BY id DESC LIMIT :limit
    """
    return fetch_page(session, DeliveryRow, sql, limit, id=channel_id, before=before)


@dataclass(frozen=True, slots=True)
class Listener:
    """A channel that is to be told. operators: names of those that its person watches something of."""

    id: int
    repository_id: int
    repository: str
    kinds: list[str]
    person: str | None
    operators: list[str]
    quiet_from: int | None
    quiet_until: int | None
    time_zone: str
    created_at: datetime


def list_listeners(session: Session) -> list[Listener]:
    """Every channel of repositories that are not being deleted."""
    sql = """
    SELECT channels.id, repository_id, repositories.name AS repository, kinds, person,
           ARRAY(SELECT DISTINCT operators.name FROM watches JOIN operators ON operators.id = watches.operator_id
                 WHERE watches.person = channels.person AND operators.repository_id = channels.repository_id)
           AS operators,
           quiet_from, quiet_until, time_zone, channels.created_at
    FROM channels JOIN repositories ON repositories.id = repository_id WHERE deleted_at IS NULL ORDER BY channels.id
    """
    return fetch(session, Listener, sql)


_IS_WATCHED = """
(channels.person IS NULL OR EXISTS (
    SELECT FROM regression_series AS member JOIN series ON series.id = member.series_id
    JOIN watches ON watches.operator_id = series.operator_id
    WHERE member.regression_id = regressions.id AND watches.person = channels.person
      AND (watches.case_id IS NULL OR watches.case_id = series.case_id)))
"""
_SINCE = "{0} > now() - make_interval(hours => :hours) AND {0} > channels.created_at"
_CONFIRMED = "verdict = 'confirmed'"
_FIXED = f"""
{_CONFIRMED} AND direction <> 'faster' AND state = 'fixed' AND regressions.id IN (
    SELECT regression_id FROM regression_notes AS note
    WHERE note.state = 'fixed' AND {_SINCE.format("note.created_at")})
"""
_HAPPENED = {
    NoticeKind.CONFIRMED: f"{_CONFIRMED} AND direction = 'slower' AND {_SINCE.format('decided_at')}",
    NoticeKind.BROKEN: f"{_CONFIRMED} AND direction = 'broken' AND {_SINCE.format('decided_at')}",
    NoticeKind.SETTLED: f"{_CONFIRMED} AND direction <> 'faster' AND {_SINCE.format('settled_at')}",
    NoticeKind.FIXED: _FIXED,
}


@dataclass(frozen=True, slots=True)
class UntoldChange:
    """Something that happened to a regression, and a channel that has not told it."""

    channel_id: int
    regression_id: int


def list_untold(session: Session, kind: NoticeKind, limit: int = 100) -> list[UntoldChange]:
    """What happened after its channel was made and is not told, oldest first."""
    sql = f"""
    SELECT channels.id AS channel_id, regressions.id AS regression_id
    FROM regressions JOIN operators ON operators.id = regressions.operator_id
    JOIN channels ON channels.repository_id = operators.repository_id AND channels.kinds ? :kind
    WHERE {_HAPPENED[kind]} AND {_IS_WATCHED} AND NOT EXISTS (
        SELECT FROM deliveries WHERE channel_id = channels.id AND key = :kind || ':' || regressions.id)
    ORDER BY regressions.id, channels.id LIMIT :limit
    """
    return fetch(session, UntoldChange, sql, kind=kind, hours=LOOKBACK_HOURS, limit=limit)


@dataclass(frozen=True, slots=True)
class ToldNotice:
    """A message of a channel about a regression."""

    id: int
    created_at: datetime


def find_told(
    session: Session, channel_id: int, kinds: Sequence[NoticeKind], regression_ids: Sequence[int]
) -> ToldNotice | None:
    """The first message that told one of these of one of these regressions."""
    sql = """
    SELECT coalesce(covered_by_id, id) AS id, created_at FROM deliveries
    WHERE channel_id = :id AND kind = ANY(:kinds) AND regression_id = ANY(:regressions) ORDER BY id LIMIT 1
    """
    return fetch_one(session, ToldNotice, sql, id=channel_id, kinds=list(kinds), regressions=list(regression_ids))


@dataclass(frozen=True, slots=True)
class WeekSummary:
    """What happened in a repository since a moment, and what is open now."""

    confirmed: int
    broken: int
    improved: int
    fixed: int
    open: int
    results: int


def read_week(session: Session, repository_id: int, since: datetime) -> WeekSummary:
    """Counts for the digest of a week."""
    sql = """
    SELECT count(*) FILTER (WHERE verdict = 'confirmed' AND direction = 'slower' AND decided_at >= :since) AS confirmed,
           count(*) FILTER (WHERE verdict = 'confirmed' AND direction = 'broken' AND decided_at >= :since) AS broken,
           count(*) FILTER (WHERE verdict = 'confirmed' AND direction = 'faster' AND decided_at >= :since) AS improved,
           count(*) FILTER (WHERE verdict = 'confirmed' AND state = 'fixed' AND EXISTS (
               SELECT FROM regression_notes AS note WHERE note.regression_id = regressions.id AND note.state = 'fixed'
               AND note.created_at >= :since)) AS fixed,
           count(*) FILTER (WHERE verdict = 'confirmed' AND direction <> 'faster' AND state IN ('new', 'acknowledged'))
           AS open,
           (SELECT CAST(coalesce(sum(status.value::int), 0) AS int) FROM runs JOIN jobs ON jobs.id = runs.job_id
            JOIN operators ON operators.id = jobs.operator_id
            CROSS JOIN LATERAL jsonb_each_text(runs.statuses) AS status
            WHERE operators.repository_id = :id AND runs.finished_at >= :since) AS results
    FROM regressions JOIN operators ON operators.id = regressions.operator_id WHERE operators.repository_id = :id
    """
    week = fetch_one(session, WeekSummary, sql, id=repository_id, since=since)
    assert week is not None
    return week
