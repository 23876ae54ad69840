"""The Python code that each variant of a judged bench could reach."""

from __future__ import annotations

from alembic import op

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the database."""
    op.execute("ALTER TABLE job_sources ADD COLUMN variants JSONB")
