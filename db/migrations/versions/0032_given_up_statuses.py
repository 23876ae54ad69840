"""Statuses that were given up are counted for monitoring."""

from __future__ import annotations

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_callbacks_given_up", "callbacks", ["given_up_at"], postgresql_where="given_up_at IS NOT NULL"
    )
