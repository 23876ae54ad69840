"""An index to list the jobs of an operator by."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_jobs_operator_id_id"), "jobs", ["operator_id", "id"])
