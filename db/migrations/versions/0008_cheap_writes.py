"""Cheaper writes: heartbeats write to no index, and a commit's catalogue is compared by its digest."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Pages of runs and workers keep room for the next version of a row, and no index holds the heartbeat.
    op.drop_index("ix_runs_running", "runs")
    op.create_index("ix_runs_running", "runs", ["id"], postgresql_where="state = 'running'")
    op.execute("ALTER TABLE runs SET (fillfactor = 70)")
    op.execute("ALTER TABLE workers SET (fillfactor = 50)")
    op.add_column("commits", sa.Column("catalogue_digest", sa.Text(), nullable=True))
