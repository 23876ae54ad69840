"""Jobs wait between attempts, outages are no attempts, and workers that keep failing pause."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_REASONS = (
    "'unchanged', 'base_failed', 'interpreter_mismatch', 'unfit_device', 'git_unreachable', 'disk_full', "
    "'host_fault', 'internal_error', 'unstorable', 'worker_lost'"
)


def upgrade() -> None:
    op.add_column("jobs", sa.Column("outages", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("jobs", sa.Column("not_before", sa.DateTime(timezone=True), nullable=True))
    op.add_column("workers", sa.Column("paused_until", sa.DateTime(timezone=True), nullable=True))
    op.add_column("workers", sa.Column("pause_reason", sa.Text(), nullable=True))
    op.create_check_constraint(op.f("ck_workers_pause_reason_known"), "workers", f"pause_reason IN ({_REASONS})")
    for table in ("jobs", "runs", "comparisons"):
        op.drop_constraint(op.f(f"ck_{table}_reason_known"), table)
        # Every reason that is stored is in the longer list, so the rows need not be read again.
        op.execute(
            f"ALTER TABLE {table} ADD CONSTRAINT ck_{table}_reason_known CHECK (reason IN ({_REASONS})) NOT VALID"
        )
        op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT ck_{table}_reason_known")
