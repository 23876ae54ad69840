"""Runs that made room for a more urgent job, and what they found until then."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_STATES = "'running', 'done', 'failed', 'lost', 'cancelled', 'yielded'"


def upgrade() -> None:
    op.add_column("runs", sa.Column("yielded_to_job_id", sa.BigInteger(), nullable=True))
    op.drop_constraint(op.f("ck_runs_state_known"), "runs")
    # Runs end meanwhile: only the change of the list locks the table, and not the reading of its rows.
    op.execute(f"ALTER TABLE runs ADD CONSTRAINT ck_runs_state_known CHECK (state IN ({_STATES})) NOT VALID")
    op.execute("ALTER TABLE runs VALIDATE CONSTRAINT ck_runs_state_known")
    op.create_table(
        "partial_outcomes",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("environment_key", sa.Text(), nullable=False),
        sa.Column("findings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_partial_outcomes_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_partial_outcomes")),
    )
