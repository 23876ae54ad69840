"""Fingerprints of machine code beside builds, and what a profile says beside its trace."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("builds", sa.Column("compile_seconds", sa.Double(), nullable=True))
    op.add_column("builds", sa.Column("code_hash", sa.Text(), server_default="", nullable=False))
    summary = postgresql.JSONB(astext_type=sa.Text())
    op.add_column("traces", sa.Column("summary", summary, server_default="{}", nullable=False))
    op.add_column("traces", sa.Column("report", sa.LargeBinary(), nullable=True))
