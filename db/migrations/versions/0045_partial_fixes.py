"""What is left of a change that later commits undid for some of its series."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

_FIXES = (("regressions", "partly_fixed_by_commit_id"), ("regression_series", "fixed_by_commit_id"))


def upgrade() -> None:
    """Upgrade the database."""
    for table, column in _FIXES:
        op.add_column(table, sa.Column("left_ratio", sa.Float()))
        op.add_column(table, sa.Column(column, sa.BigInteger()))
        op.create_foreign_key(f"fk_{table}_{column}", table, "commits", [column], ["id"], ondelete="SET NULL")
        op.create_index(f"ix_{table}_{column}", table, [column], postgresql_where=sa.text(f"{column} IS NOT NULL"))
