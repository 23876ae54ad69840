"""Repositories whose results anybody may read."""

from __future__ import annotations

from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the database."""
    op.execute("ALTER TABLE repositories ADD COLUMN is_public BOOLEAN NOT NULL DEFAULT false")
