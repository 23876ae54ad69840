"""Physical cards of devices: which one measured a run and its points, and how far two of them lie apart."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the database."""
    op.create_table(
        "cards",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column("device_id", sa.BigInteger(), sa.ForeignKey("devices.id", ondelete="CASCADE"), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("facts", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.UniqueConstraint("device_id", "key", name=op.f("uq_cards_device_id_key")),
    )
    for table in ("runs", "job_sources", "all_points"):
        op.add_column(table, sa.Column("card_id", sa.BigInteger(), nullable=True))
        name = f"fk_{table}_card_id"
        # Writers wait for the first statement only: no row has a card yet, and the second one lets them go on.
        op.create_foreign_key(
            op.f(name), table, "cards", ["card_id"], ["id"], ondelete="SET NULL", postgresql_not_valid=True
        )
        op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")
    op.create_index(op.f("ix_runs_card_id"), "runs", ["card_id"])
    op.create_index(op.f("ix_job_sources_card_id"), "job_sources", ["card_id"])
    op.add_column("runs", sa.Column("card_facts", JSONB(), nullable=True))
    op.add_column("job_sources", sa.Column("drifts", JSONB(), server_default="[]", nullable=False))
    op.add_column("job_sources", sa.Column("drifts_since", sa.DateTime(timezone=True), nullable=True))
    # A view keeps the columns that its table had when it was made.
    op.execute("CREATE OR REPLACE VIEW points AS SELECT * FROM all_points WHERE NOT is_struck_out")
    _create_offsets()


def _create_offsets() -> None:
    cards = [
        sa.Column(name, sa.BigInteger(), sa.ForeignKey("cards.id", ondelete="CASCADE"), primary_key=True)
        for name in ("card_id", "other_card_id")
    ]
    op.create_table(
        "card_offsets",
        sa.Column("operator_id", sa.BigInteger(), sa.ForeignKey("operators.id", ondelete="CASCADE"), primary_key=True),
        *cards,
        sa.Column("logs", JSONB(), nullable=False),
        sa.Column("is_agreed", sa.Boolean(), nullable=False),
    )
    for name in ("card_id", "other_card_id"):
        op.create_index(op.f(f"ix_card_offsets_{name}"), "card_offsets", [name])
