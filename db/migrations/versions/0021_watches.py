"""Watches: which operators and cases a person keeps an eye on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "watches",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("operator_id", sa.BigInteger(), sa.ForeignKey("operators.id", ondelete="CASCADE"), nullable=False),
        sa.Column("case_id", sa.BigInteger(), sa.ForeignKey("cases.id", ondelete="CASCADE")),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.UniqueConstraint("operator_id", "person", "case_id", postgresql_nulls_not_distinct=True),
    )
    op.create_index(op.f("ix_watches_case_id"), "watches", ["case_id"])
