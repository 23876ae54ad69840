"""Work that commits moved between the forward and the backward pass, beside what else they traded."""

from __future__ import annotations

from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None

_KINDS = "'accuracy', 'determinism', 'batch', 'memory', 'kept', 'code', 'energy', 'compile', 'load', 'first_call'"


def upgrade() -> None:
    """Upgrade the database."""
    op.execute("ALTER TABLE trades ADD COLUMN passes JSONB DEFAULT '{}' NOT NULL")
    op.execute("ALTER TABLE trades DROP CONSTRAINT ck_trades_kind_known")
    op.execute(f"ALTER TABLE trades ADD CONSTRAINT ck_trades_kind_known CHECK (kind IN ({_KINDS}, 'moved'))")
