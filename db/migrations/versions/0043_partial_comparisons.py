"""What an interrupted comparison keeps: the rounds that it took."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the database."""
    op.add_column("partial_outcomes", sa.Column("comparisons", JSONB(), server_default="[]", nullable=False))
