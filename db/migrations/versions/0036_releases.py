"""An index of releases: the commits with tags."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the database."""
    where = sa.text("tags <> '[]'")
    op.create_index("ix_commits_releases", "commits", ["repository_id", "ordinal"], postgresql_where=where)
