"""Stores channels, the messages that they are to send, and the result of each attempt.

A message is a row with a key that is written once, whoever notices the event first. A server claims it for some
seconds, sends it without a transaction, and stores the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from warpwatch.contract.words import NoticeKind
from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError, StateError
from warpwatch.db.models import ChannelRecord, DeliveryRecord

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
