"""Statuses of commits that no submission measures yet: those of forks wait for a member."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("callbacks", "submission_id", nullable=True)
    op.add_column("callbacks", sa.Column("repository_id", sa.BigInteger(), nullable=True))
    op.create_foreign_key(
        op.f("fk_callbacks_repository_id"),
        "callbacks",
        "repositories",
        ["repository_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_index(op.f("ix_callbacks_url"), "callbacks", ["url"])
    op.create_index(op.f("ix_callbacks_repository_id"), "callbacks", ["repository_id"])
    op.create_check_constraint(
        op.f("ck_callbacks_one_subject"), "callbacks", "(submission_id IS NULL) <> (repository_id IS NULL)"
    )
