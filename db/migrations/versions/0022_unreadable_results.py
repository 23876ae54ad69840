"""A status for programs whose results cannot be read."""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_STATUSES = (
    "'ok', 'wrong', 'crashed', 'timed_out', 'out_of_memory', 'build_failed', 'unreadable', 'unsupported', 'skipped'"
)


def upgrade() -> None:
    op.drop_constraint(op.f("ck_all_results_status_known"), "all_results")
    # Results are written meanwhile: only the change of the list locks the table, and not the reading of its rows.
    op.execute(f"ALTER TABLE all_results ADD CONSTRAINT ck_all_results_status_known CHECK (status IN ({_STATUSES})) NOT VALID")
    op.execute("ALTER TABLE all_results VALIDATE CONSTRAINT ck_all_results_status_known")
