"""Where people are told of changes and alarms, and what was told."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.contract.words import NoticeKind
from warpwatch.db.models.base import Base, created, one_of


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
    """What takes the messages: webhook, or a service of apprise such as slack."""
    url: Mapped[str]
    """Its address with its secrets, as apprise writes it; of a webhook, an address of http or https."""
    shown_url: Mapped[str]
    """The address without secrets."""
    secret: Mapped[str | None]
    """What the messages of a webhook are signed with."""
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
    """What went wrong last."""
    created_at: Mapped[datetime] = created()
    sent_at: Mapped[datetime | None]
    given_up_at: Mapped[datetime | None]
