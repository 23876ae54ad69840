"""CI jobs that submit with the ID token of their code host."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    owner = sa.ForeignKey("repositories.id", ondelete="CASCADE", name=op.f("fk_ci_identities_repository_id"))
    op.create_table(
        "ci_identities",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column("repository_id", sa.BigInteger(), owner, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("issuer", "audience", "subject")),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.UniqueConstraint(
            "repository_id",
            "issuer",
            "audience",
            "subject",
            name=op.f("uq_ci_identities_repository_id_issuer_audience_subject"),
        ),
    )
    op.create_index(op.f("ix_ci_identities_issuer"), "ci_identities", ["issuer"])
