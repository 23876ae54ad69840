"""Counts of the results of commits and runs, kept beside them; an index for the jobs of an operator at a commit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the database. The server fills the columns; until then, queries count."""
    # For the jobs of an operator at a commit, of which a commit has hundreds of others.
    op.create_index(op.f("ix_jobs_commit_id_operator_id"), "jobs", ["commit_id", "operator_id"])
    op.drop_index(op.f("ix_jobs_commit_id"), "jobs")
    op.add_column("commits", sa.Column("counts", JSONB(), nullable=True))
    op.add_column("runs", sa.Column("statuses", JSONB(), nullable=True))
    op.create_index("ix_commits_uncounted", "commits", ["id"], postgresql_where=sa.text("counts IS NULL"))
    op.create_index(
        "ix_runs_uncounted", "runs", ["id"], postgresql_where=sa.text("state = 'done' AND statuses IS NULL")
    )
