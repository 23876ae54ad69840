"""Series that raise neither suspicion nor alarm until a day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "muted_series",
        sa.Column("series_id", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.Date(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["series_id"], ["series.id"], name=op.f("fk_muted_series_series_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("series_id", name=op.f("pk_muted_series")),
    )
    op.create_index(op.f("ix_muted_series_until"), "muted_series", ["until"])
