"""The commits that trades are held against, where others without results lie between them."""

from __future__ import annotations

from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the database."""
    op.execute("ALTER TABLE trades ADD COLUMN since TEXT")
