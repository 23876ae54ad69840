"""How operators moved over the newest commits, kept beside the points."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the database. The server fills the table; until then, queries compare."""
    op.create_table(
        "trends",
        sa.Column("operator_id", sa.BigInteger(), sa.ForeignKey("operators.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("device_id", sa.BigInteger(), sa.ForeignKey("devices.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("metric", sa.Text(), primary_key=True),
        sa.Column("commit_ids", JSONB(), nullable=False),
        sa.Column("cells", JSONB(), nullable=False),
    )
