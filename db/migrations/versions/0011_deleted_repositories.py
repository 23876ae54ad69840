"""Repositories can be deleted; every foreign key to a commit, trace or submission has an index, which that needs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_INDEXES = (
    ("jobs", "base_commit_id", True),
    ("jobs", "unchanged_since_commit_id", True),
    ("submissions", "base_commit_id", True),
    ("regressions", "base_trace_id", True),
    ("regressions", "head_trace_id", True),
    ("regressions", "base_commit_id", False),
    ("trials", "base_commit_id", False),
    ("trials", "head_commit_id", False),
    ("comparisons", "base_commit_id", False),
    ("comparisons", "head_commit_id", False),
    ("bundles", "submission_id", False),
)


def upgrade() -> None:
    """Upgrade the database."""
    op.add_column("repositories", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    for table, column, is_sparse in _INDEXES:
        where = sa.text(f"{column} IS NOT NULL") if is_sparse else None
        op.create_index(op.f(f"ix_{table}_{column}"), table, [column], postgresql_where=where)
