"""Keys of workers without the database's address, and the results that they are sending."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "worker_keys",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.UniqueConstraint("name", name=op.f("uq_worker_keys_name")),
        sa.UniqueConstraint("digest", name=op.f("uq_worker_keys_digest")),
    )
    op.add_column("workers", sa.Column("key_id", sa.BigInteger(), nullable=True))
    op.create_foreign_key(
        op.f("fk_workers_key_id"), "workers", "worker_keys", ["key_id"], ["id"], ondelete="SET NULL"
    )
    op.create_index(op.f("ix_workers_key_id"), "workers", ["key_id"])
    op.create_table(
        "result_chunks",
        sa.Column("run_id", sa.BigInteger(), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("start", sa.BigInteger(), primary_key=True),
        sa.Column("data", sa.LargeBinary(), nullable=False),
    )
    # Results files are compressed already.
    op.execute("ALTER TABLE result_chunks ALTER COLUMN data SET STORAGE EXTERNAL")
