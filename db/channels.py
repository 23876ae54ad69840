"""Channels: places where people are told of changes and alarms, and the deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, Session, mapped_column

from warpwatch.contract.words import NoticeKind
from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError, StateError
from warpwatch.db.models.base import Base, created, one_of
from warpwatch.db.reads.query import Page, fetch, fetch_one, fetch_page
from warpwatch.db.regressions import IS_UNPAIRED, SUPERSEDED


class ChannelRecord(Base):
    """A place where people of a repository are told: a chat, a mailbox, a webhook."""

    __tablename__ = "channels"
    __table_args__ = (
        UniqueConstraint("repository_id", "name"),
        CheckConstraint("(quiet_from IS NULL) = (quiet_until IS NULL)", name="quiet_hours_whole"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    name: Mapped[str]
    service: Mapped[str]
    """Receiver of the messages: webhook, or a service of apprise such as slack."""
    url: Mapped[str]
    """Its address with its secrets, as apprise writes it; of a webhook, an address of http or https."""
    shown_url: Mapped[str]
    """The address without secrets."""
    secret: Mapped[str | None]
    """Secret that signs the messages of a webhook."""
    kinds: Mapped[list[Any]]
    """Which NoticeKinds it tells of."""
    person: Mapped[str | None]
    """Tells only of what this person watches; None for everything."""
    quiet_from: Mapped[int | None]
    quiet_until: Mapped[int | None]
    """Hours of the day between which messages wait; None where none do."""
    time_zone: Mapped[str] = mapped_column(server_default="UTC")
    created_at: Mapped[datetime] = created()


class DeliveryRecord(Base):
    """A message of a channel, sent again until it is taken; or an event that an earlier message tells of already."""

    __tablename__ = "deliveries"
    __table_args__ = (
        one_of("kind", NoticeKind),
        UniqueConstraint("channel_id", "key"),
        Index(None, "channel_id", "id"),
        Index(None, "regression_id"),
        Index(None, "covered_by_id"),
        Index(
            "ix_deliveries_due",
            "next_at",
            postgresql_where="sent_at IS NULL AND given_up_at IS NULL AND covered_by_id IS NULL",
        ),
        Index("ix_deliveries_given_up", "given_up_at", postgresql_where="given_up_at IS NOT NULL"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    channel_id: Mapped[int] = mapped_column(ForeignKey("channels.id", ondelete="CASCADE"))
    kind: Mapped[str]
    key: Mapped[str]
    """Names what happened, so that it is told once however often somebody looks."""
    regression_id: Mapped[int | None] = mapped_column(ForeignKey("regressions.id", ondelete="CASCADE"))
    covered_by_id: Mapped[int | None] = mapped_column(ForeignKey("deliveries.id", ondelete="CASCADE"))
    """The message of another regression of the same event, which tells of this one, too."""
    title: Mapped[str]
    text: Mapped[str]
    link: Mapped[str]
    fields: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    """The same for programs, as webhooks send it."""
    attempts: Mapped[int] = mapped_column(server_default="0")
    next_at: Mapped[datetime] = created()
    claimed_until: Mapped[datetime | None]
    message: Mapped[str] = mapped_column(server_default="")
    """The last error."""
    created_at: Mapped[datetime] = created()
    sent_at: Mapped[datetime | None]
    given_up_at: Mapped[datetime | None]


LOOKBACK_HOURS = 24
"""Age in hours after which an event is no longer reported, for instance after an outage of the server."""


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
{_CONFIRMED} AND direction <> 'faster' AND state IN ('fixed', 'reverted') AND regressions.id IN (
    SELECT regression_id FROM regression_notes AS note
    WHERE note.state = 'fixed' AND {_SINCE.format("note.created_at")}
    UNION ALL
    SELECT reverted.id FROM regressions AS reverted JOIN regression_notes AS note ON note.regression_id = reverted.id
    WHERE reverted.verdict = 'confirmed' AND reverted.state = 'reverted' AND note.state = 'reverted'
      AND {_SINCE.format("note.created_at")})
"""
_HAPPENED = {
    NoticeKind.CONFIRMED: f"""direction = 'slower' AND (({_CONFIRMED} AND {_SINCE.format("decided_at")})
        OR ({IS_UNPAIRED} AND {_SINCE.format("settled_at")}))""",
    NoticeKind.BROKEN: f"{_CONFIRMED} AND direction = 'broken' AND {_SINCE.format('decided_at')}",
    NoticeKind.SETTLED: f"{_CONFIRMED} AND direction <> 'faster' AND {_SINCE.format('settled_at')}",
    NoticeKind.FIXED: _FIXED,
}


@dataclass(frozen=True, slots=True)
class UntoldChange:
    """Something that happened to a regression, and a channel that has not told it."""

    channel_id: int
    regression_id: int


SUSPICION = "suspected"
"""Begins the key of a confirmation that only told a suspicion, so that a later confirmation is told as well."""


def list_untold(session: Session, kind: NoticeKind, limit: int = 100) -> list[UntoldChange]:
    """Events since the creation of a channel that the channel has not reported, oldest first."""
    sql = f"""
    SELECT channels.id AS channel_id, regressions.id AS regression_id
    FROM regressions JOIN operators ON operators.id = regressions.operator_id
    JOIN channels ON channels.repository_id = operators.repository_id AND channels.kinds ? :kind
    WHERE {_HAPPENED[kind]} AND {_IS_WATCHED} AND NOT EXISTS (
        SELECT FROM deliveries WHERE channel_id = channels.id AND key = ANY(ARRAY[
            :kind || ':' || regressions.id,
            CASE WHEN verdict = 'suspected' THEN '{SUSPICION}:' || regressions.id END]))
    ORDER BY regressions.id, channels.id LIMIT :limit
    """
    return fetch(session, UntoldChange, sql, kind=kind, hours=LOOKBACK_HOURS, limit=limit)


@dataclass(frozen=True, slots=True)
class WithdrawnChange:
    """A change that a message of a channel told and that is not true any more. message_id: of that message."""

    channel_id: int
    message_id: int
    regression_id: int


_WITHDRAWN = f"""
(regressions.verdict IN ('dismissed', 'unsure') OR {IS_UNPAIRED} AND regressions.state IN ('fixed', 'reverted')
 OR regressions.state = 'invalid' AND NOT ({SUPERSEDED}))
"""


def list_withdrawn(session: Session, limit: int = 1000) -> list[WithdrawnChange]:
    """Changes that a channel has told and not taken back, by message; whatever its kinds and its person are.

    What was told counts once it is sent, so the two messages arrive in their order.
    """
    # A change that joins an event after its message was written is covered by that message, which does not name it.
    sql = f"""
    SELECT told.channel_id, min(message.id) AS message_id, told.regression_id
    FROM deliveries AS told JOIN deliveries AS message ON message.id = coalesce(told.covered_by_id, told.id)
    JOIN regressions ON regressions.id = told.regression_id
    WHERE told.kind = ANY(:kinds) AND message.sent_at IS NOT NULL AND regressions.created_at <= message.created_at
      AND {_WITHDRAWN}
      AND greatest(message.sent_at, (SELECT max(created_at) FROM regression_notes WHERE regression_id = regressions.id))
          > now() - make_interval(hours => :hours)
      AND NOT EXISTS (SELECT FROM deliveries AS back WHERE back.channel_id = told.channel_id
                      AND back.key = 'withdrawn:' || told.regression_id)
    GROUP BY told.channel_id, told.regression_id ORDER BY message_id, told.regression_id LIMIT :limit
    """
    kinds = [NoticeKind.CONFIRMED, NoticeKind.BROKEN, NoticeKind.SETTLED]
    return fetch(session, WithdrawnChange, sql, kinds=kinds, hours=LOOKBACK_HOURS, limit=limit)


@dataclass(frozen=True, slots=True)
class ToldNotice:
    """A message of a channel about a regression."""

    id: int
    created_at: datetime


def find_told(
    session: Session, channel_id: int, events: Sequence[str], regression_ids: Sequence[int]
) -> ToldNotice | None:
    """The first message that told one of these of one of these regressions. events: kinds, or SUSPICION."""
    sql = """
    SELECT coalesce(covered_by_id, id) AS id, created_at FROM deliveries
    WHERE channel_id = :id AND key = ANY(:keys) ORDER BY id LIMIT 1
    """
    keys = [f"{event}:{regression_id}" for event in events for regression_id in regression_ids]
    return fetch_one(session, ToldNotice, sql, id=channel_id, keys=keys)


@dataclass(frozen=True, slots=True)
class WeekSummary:
    """Counts of a repository's changes, fixes and results since a moment, and of its regressions that are open now."""

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


CLAIM_SECONDS = 90.0
"""How long one server has to send a message; afterwards another may. Longer than any delivery."""


@dataclass(frozen=True, slots=True)
class NewChannel:
    """See db.models.ChannelRecord."""

    name: str
    service: str
    url: str
    shown_url: str
    secret: str | None
    kinds: list[NoticeKind]
    person: str | None = None
    quiet_from: int | None = None
    quiet_until: int | None = None
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to people. key: names what happened. not_before: the end of quiet hours; None for at once.

    covered_by: the message that tells of it already, so that this one is not sent.
    """

    kind: NoticeKind
    key: str
    title: str
    text: str
    link: str
    fields: dict[str, Any] = field(default_factory=dict)
    regression_id: int | None = None
    not_before: datetime | None = None
    covered_by: int | None = None


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """A message that is to be sent now, and where to. attempts: how often that failed before."""

    id: int
    repository: str
    service: str
    url: str
    secret: str | None
    kind: NoticeKind
    title: str
    text: str
    link: str
    fields: dict[str, Any]
    attempts: int


def add_channel(s: Session, repository_id: int, new: NewChannel) -> int:
    """The id of the channel; StateError where the repository has one of that name."""
    values = {name: getattr(new, name) for name in NewChannel.__slots__}
    row = insert(ChannelRecord).values(repository_id=repository_id, **values).on_conflict_do_nothing()
    channel_id: int | None = s.scalar(row.returning(ChannelRecord.id))
    if channel_id is None:
        raise StateError(f"there is a channel {new.name!r} already; choose another name")
    return channel_id


def remove_channel(s: Session, channel_id: int) -> None:
    """NotFoundError when there is no such channel."""
    row = s.execute(text("DELETE FROM channels WHERE id = :id RETURNING id"), {"id": channel_id})
    if row.one_or_none() is None:
        raise NotFoundError(f"there is no channel {channel_id}")


def tell_people(s: Session, channel_id: int, notice: Notice) -> int | None:
    """Stores a message to send; None where the channel has one with this key already."""
    values = {
        "channel_id": channel_id,
        "kind": notice.kind,
        "key": storable(notice.key),
        "regression_id": notice.regression_id,
        "covered_by_id": notice.covered_by,
        "title": storable(notice.title),
        "text": storable(notice.text),
        "link": notice.link,
        "fields": notice.fields,
    }
    if notice.not_before is not None:
        values["next_at"] = notice.not_before
    row = insert(DeliveryRecord).values(values).on_conflict_do_nothing(index_elements=["channel_id", "key"])
    delivery_id: int | None = s.scalar(row.returning(DeliveryRecord.id))
    return delivery_id


def claim_delivery(s: Session) -> DueDelivery | None:
    """The message to send next, claimed for CLAIM_SECONDS."""
    sql = """
    UPDATE deliveries SET claimed_until = now() + make_interval(secs => :seconds)
    FROM channels JOIN repositories ON repositories.id = channels.repository_id
    WHERE channels.id = channel_id AND deliveries.id = (
        SELECT id FROM deliveries
        WHERE sent_at IS NULL AND given_up_at IS NULL AND covered_by_id IS NULL AND next_at <= now()
          AND (claimed_until IS NULL OR claimed_until < now())
        ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING deliveries.id, repositories.name AS repository, service, channels.url, secret, kind, title, text, link,
              fields, attempts
    """
    row = s.execute(text(sql), {"seconds": CLAIM_SECONDS}).one_or_none()
    return None if row is None else DueDelivery(*row)
