"""Definitions that lie beside the measured history, and the version of them that each job measures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


_STATUSES = (
    "'ok', 'wrong', 'crashed', 'timed_out', 'out_of_memory', 'build_failed', 'unreadable', 'missing_dependency', 'unsupported', "
    "'skipped'"
)
_REASONS = (
    "'unchanged', 'base_failed', 'interpreter_mismatch', 'unfit_device', 'git_unreachable', 'disk_full', "
    "'host_fault', 'internal_error', 'unstorable', 'worker_lost', 'missing_dependency', 'unusable_definitions', "
    "'incomplete_commit'"
)
_LISTS = (
    ("all_results", "status", _STATUSES),
    ("jobs", "reason", _REASONS),
    ("runs", "reason", _REASONS),
    ("all_comparisons", "reason", _REASONS),
    ("workers", "pause_reason", _REASONS),
)


def upgrade() -> None:
    for name in ("definitions_url", "definitions_ref", "definitions_sha"):
        op.add_column("repositories", sa.Column(name, sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("definitions_sha", sa.Text(), nullable=True))
    for table, column, values in _LISTS:
        name = f"ck_{table}_{column}_known"
        op.drop_constraint(op.f(name), table)
        # Every value that is stored is in the longer list, and rows are written while they are read again.
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({column} IN ({values})) NOT VALID")
        op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")
