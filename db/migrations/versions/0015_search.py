"""Indexes that the search uses: the words of commits, and the regressions of an operator."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE INDEX ix_commits_words ON commits "
        "USING gin (to_tsvector('simple', left(subject, 500) || ' ' || left(author, 100)))"
    )
    op.create_index(op.f("ix_regressions_operator_id_id"), "regressions", ["operator_id", "id"])
