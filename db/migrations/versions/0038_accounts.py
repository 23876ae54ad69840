"""Accounts with roles; personal tokens belong to one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

# Everybody who has a token gets an account, with the role of the strongest token that is not revoked.
_ROLES = """
INSERT INTO accounts (name, role)
SELECT person, (ARRAY['viewer', 'submitter', 'triager', 'administrator'])[
    coalesce(max(array_position(ARRAY['read', 'submit', 'triage', 'administer'], scope))
             FILTER (WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())), 1)]
FROM access_tokens GROUP BY person
"""
_OWNERS = "UPDATE access_tokens SET account_id = accounts.id FROM accounts WHERE accounts.name = person"


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("is_role_fixed", sa.Boolean(), server_default="true", nullable=False),
        *(sa.Column(name, sa.Text()) for name in ("issuer", "subject", "invitation_hash")),
        sa.Column("invitation_expires_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True)),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.UniqueConstraint("name", name=op.f("uq_accounts_name")),
        sa.UniqueConstraint("issuer", "subject", name=op.f("uq_accounts_issuer_subject")),
        sa.UniqueConstraint("invitation_hash", name=op.f("uq_accounts_invitation_hash")),
        sa.CheckConstraint(
            "role IN ('viewer', 'submitter', 'triager', 'administrator')", name=op.f("ck_accounts_role_known")
        ),
    )
    op.add_column(
        "access_tokens",
        sa.Column(
            "account_id",
            sa.BigInteger(),
            sa.ForeignKey("accounts.id", name=op.f("fk_access_tokens_account_id")),
        ),
    )
    op.create_index(op.f("ix_access_tokens_account_id"), "access_tokens", ["account_id"])
    op.execute(_ROLES)
    op.execute(_OWNERS)
