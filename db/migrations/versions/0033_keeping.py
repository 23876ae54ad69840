"""How long data is kept, and deletions of submissions and branches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "retention_rules",
        sa.Column(
            "repository_id",
            sa.BigInteger(),
            sa.ForeignKey("repositories.id", ondelete="CASCADE", name=op.f("fk_retention_rules_repository_id")),
            nullable=False,
        ),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("days", sa.BigInteger(), nullable=False),
        sa.Column("seen_id", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("run_at", sa.DateTime(timezone=True)),
        sa.Column("deleted", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("freed_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("repository_id", "kind", name=op.f("pk_retention_rules")),
        sa.CheckConstraint(
            "kind IN ('samples', 'traces', 'logs', 'builds', 'mirror')", name=op.f("ck_retention_rules_kind_known")
        ),
        sa.CheckConstraint("days BETWEEN 1 AND 36500", name=op.f("ck_retention_rules_days_possible")),
    )
    op.create_table(
        "deletions",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column(
            "repository_id",
            sa.BigInteger(),
            sa.ForeignKey("repositories.id", ondelete="CASCADE", name=op.f("fk_deletions_repository_id")),
            nullable=False,
        ),
        sa.Column(
            "submission_id",
            sa.BigInteger(),
            sa.ForeignKey("submissions.id", ondelete="CASCADE", name=op.f("fk_deletions_submission_id")),
        ),
        sa.Column("commit_ids", JSONB(), server_default="[]", nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.UniqueConstraint("submission_id", name=op.f("uq_deletions_submission_id")),
    )
    op.create_index(op.f("ix_deletions_repository_id"), "deletions", ["repository_id"])
    # Builds of before count from now on.
    op.add_column(
        "builds",
        sa.Column("built_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
    )
