"""Branches with their commits along first parents, tags, and what ended a change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_JSON = postgresql.JSONB(astext_type=sa.Text())
_STATES = "state IN ('new', 'acknowledged', 'accepted', 'fixed', 'reverted', 'invalid')"


def upgrade() -> None:
    op.add_column("repositories", sa.Column("branches_key", sa.Text()))
    op.add_column("commits", sa.Column("tags", _JSON, server_default="[]", nullable=False))
    op.create_table(
        "branches",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        _link("repository_id", "repositories"),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("is_watched", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("head_sha", sa.Text(), nullable=False),
        sa.Column("fork_at", sa.BigInteger()),
        *(sa.Column(name, sa.Text()) for name in ("fork_sha", "merge_base_sha", "merged_sha")),
        sa.UniqueConstraint("repository_id", "name"),
        sa.CheckConstraint("kind IN ('branch', 'request', 'merged')", name=op.f("ck_branches_kind_known")),
    )
    op.create_index(
        "ix_branches_watched", "branches", ["repository_id"], unique=True, postgresql_where=sa.text("is_watched")
    )
    op.create_index("ix_branches_merged", "branches", ["id"], postgresql_where=sa.text("merged_sha IS NOT NULL"))
    op.create_table(
        "branch_commits",
        _link("commit_id", "commits"),
        _link("branch_id", "branches"),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("commit_id", "branch_id"),
    )
    op.create_index(op.f("ix_branch_commits_branch_id_place"), "branch_commits", ["branch_id", "place"])
    for name, table in (("fixed_by_commit_id", "commits"), ("merged_as_id", "regressions")):
        op.add_column(
            "regressions", sa.Column(name, sa.BigInteger(), sa.ForeignKey(f"{table}.id", ondelete="SET NULL"))
        )
        op.create_index(op.f(f"ix_regressions_{name}"), "regressions", [name])
    op.drop_constraint(op.f("ck_regressions_state_known"), "regressions")
    op.create_check_constraint(op.f("ck_regressions_state_known"), "regressions", _STATES)


def _link(name: str, table: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), sa.ForeignKey(f"{table}.id", ondelete="CASCADE"), nullable=False)
