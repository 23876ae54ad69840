"""Channels that tell people of changes and alarms, and their messages."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def _reference(table: str, column: str, target: str, *, nullable: bool = False) -> sa.Column[int]:
    key = sa.ForeignKey(f"{target}.id", ondelete="CASCADE", name=op.f(f"fk_{table}_{column}"))
    return sa.Column(column, sa.BigInteger(), key, nullable=nullable)


def _moment(name: str, *, now: bool = False) -> sa.Column[datetime]:
    default = sa.func.now() if now else None
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=not now)


def upgrade() -> None:
    op.create_table(
        "channels",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        _reference("channels", "repository_id", "repositories"),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("name", "service", "url", "shown_url")),
        sa.Column("secret", sa.Text()),
        sa.Column("kinds", JSONB(), nullable=False),
        sa.Column("person", sa.Text()),
        sa.Column("quiet_from", sa.BigInteger()),
        sa.Column("quiet_until", sa.BigInteger()),
        sa.Column("time_zone", sa.Text(), server_default="UTC", nullable=False),
        _moment("created_at", now=True),
        sa.UniqueConstraint("repository_id", "name", name=op.f("uq_channels_repository_id_name")),
        sa.CheckConstraint(
            "(quiet_from IS NULL) = (quiet_until IS NULL)", name=op.f("ck_channels_quiet_hours_whole")
        ),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        _reference("deliveries", "channel_id", "channels"),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        _reference("deliveries", "regression_id", "regressions", nullable=True),
        _reference("deliveries", "covered_by_id", "deliveries", nullable=True),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("title", "text", "link")),
        sa.Column("fields", JSONB(), server_default="{}", nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        _moment("next_at", now=True),
        _moment("claimed_until"),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        _moment("created_at", now=True),
        _moment("sent_at"),
        _moment("given_up_at"),
        sa.UniqueConstraint("channel_id", "key", name=op.f("uq_deliveries_channel_id_key")),
        sa.CheckConstraint(
            "kind IN ('confirmed', 'broken', 'settled', 'fixed', 'alarm', 'digest', 'test')",
            name=op.f("ck_deliveries_kind_known"),
        ),
    )
    op.create_index(op.f("ix_deliveries_channel_id_id"), "deliveries", ["channel_id", "id"])
    op.create_index(op.f("ix_deliveries_regression_id"), "deliveries", ["regression_id"])
    op.create_index(op.f("ix_deliveries_covered_by_id"), "deliveries", ["covered_by_id"])
    waits = "sent_at IS NULL AND given_up_at IS NULL AND covered_by_id IS NULL"
    op.create_index("ix_deliveries_due", "deliveries", ["next_at"], postgresql_where=waits)
    op.create_index(
        "ix_deliveries_given_up", "deliveries", ["given_up_at"], postgresql_where="given_up_at IS NOT NULL"
    )
    for column in ("decided", "settled"):
        op.create_index(
            f"ix_regressions_{column}", "regressions", [f"{column}_at"], postgresql_where="verdict = 'confirmed'"
        )
    op.create_index("ix_regression_notes_fixed", "regression_notes", ["created_at"], postgresql_where="state = 'fixed'")
