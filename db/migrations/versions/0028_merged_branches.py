"""What of a merge commit changed an operator: trials inside the branch that it merged, and the range they found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _add_commit("trials", "merge_commit_id")
    op.add_column("regressions", sa.Column("merge_cause", sa.Text(), nullable=True))
    op.create_check_constraint(
        op.f("ck_regressions_merge_cause_known"), "regressions", "merge_cause IN ('branch', 'merge', 'unknown')"
    )
    _add_commit("regressions", "merged_base_commit_id")
    _add_commit("regressions", "merged_head_commit_id")
    op.add_column("regressions", sa.Column("merged_commits", sa.BigInteger(), nullable=True))


def _add_commit(table: str, column: str) -> None:
    op.add_column(table, sa.Column(column, sa.BigInteger(), nullable=True))
    op.create_foreign_key(op.f(f"fk_{table}_{column}"), table, "commits", [column], ["id"], ondelete="SET NULL")
    where = sa.text(f"{column} IS NOT NULL")
    op.create_index(op.f(f"ix_{table}_{column}"), table, [column], postgresql_where=where)
