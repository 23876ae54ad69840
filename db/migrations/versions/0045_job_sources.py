"""What the operator of a judged bench was made of, and how far series of unchanged code lay off their level."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0045"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_sources",
        sa.Column("job_id", sa.BigInteger(), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("operator_id", sa.BigInteger(), sa.ForeignKey("operators.id", ondelete="CASCADE"), nullable=False),
        sa.Column("commit_id", sa.BigInteger(), sa.ForeignKey("commits.id", ondelete="CASCADE"), nullable=False),
        sa.Column(
            "environment_id", sa.BigInteger(), sa.ForeignKey("environments.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("sources", sa.Text(), nullable=True),
        sa.Column("shifts", JSONB(), server_default="[]", nullable=False),
    )
    op.create_index(op.f("ix_job_sources_operator_id_commit_id"), "job_sources", ["operator_id", "commit_id"])
    op.create_index(op.f("ix_job_sources_commit_id_environment_id"), "job_sources", ["commit_id", "environment_id"])
    op.create_index(op.f("ix_job_sources_environment_id"), "job_sources", ["environment_id"])
