"""Patches of working trees, the commits that they make, and what their jobs found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "patches",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column(
            "repository_id", sa.BigInteger(), sa.ForeignKey("repositories.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("base_sha", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.UniqueConstraint("repository_id", "sha", name=op.f("uq_patches_repository_id_sha")),
    )
    op.create_index(op.f("ix_patches_used_at"), "patches", ["used_at"])
    op.create_table(
        "patch_outcomes",
        sa.Column("job_id", sa.BigInteger(), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("outcome", JSONB(), nullable=False),
    )
    op.add_column("commits", sa.Column("patch_id", sa.BigInteger(), nullable=True))
    op.create_foreign_key(op.f("fk_commits_patch_id"), "commits", "patches", ["patch_id"], ["id"], ondelete="CASCADE")
    where = sa.text("patch_id IS NOT NULL")
    op.create_index(op.f("ix_commits_patch_id"), "commits", ["patch_id"], postgresql_where=where)
