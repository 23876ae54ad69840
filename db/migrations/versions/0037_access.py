"""Personal tokens, sessions that were logged out, and who did what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "access_tokens",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), server_default="", nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.UniqueConstraint("token_hash", name=op.f("uq_access_tokens_token_hash")),
        sa.CheckConstraint(
            "scope IN ('read', 'submit', 'triage', 'administer')", name=op.f("ck_access_tokens_scope_known")
        ),
    )
    op.create_table(
        "ended_sessions",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index(op.f("ix_ended_sessions_expires_at"), "ended_sessions", ["expires_at"])
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("caller", "method", "route", "path")),
        sa.Column("status", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.Text()),
    )
