"""A commit status is claimed while it is sent, so that no transaction is open meanwhile."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the database."""
    op.add_column("callbacks", sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_callbacks_claimed", "callbacks", ["claimed_until"], postgresql_where=sa.text("claimed_until IS NOT NULL")
    )
