"""Reasons of jobs whose container image cannot be used."""

from __future__ import annotations

from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

_REASONS = (
    "'unchanged', 'base_failed', 'interpreter_mismatch', 'control_moved', 'control_missed', 'unfit_device', "
    "'git_unreachable', 'disk_full', 'host_fault', 'internal_error', 'unstorable', 'worker_lost', "
    "'missing_dependency', 'unusable_definitions', 'incomplete_commit', 'image_refused', 'image_missing'"
)
_COLUMNS = (("jobs", "reason"), ("runs", "reason"), ("all_comparisons", "reason"), ("workers", "pause_reason"))


def upgrade() -> None:
    """Upgrade the database."""
    for table, column in _COLUMNS:
        name = f"ck_{table}_{column}_known"
        op.drop_constraint(op.f(name), table)
        # Every value that is stored is in the longer list, and rows are written while they are read again.
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({column} IN ({_REASONS})) NOT VALID")
        op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")
