"""The rows of the jobs are the queue: the tables of Procrastinate go, and jobs get an index in the queue's order."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

# A database that was made at 0043 by this version has none of it.
_DROP_PROCRASTINATE = """
DO $$
DECLARE
    target text;
BEGIN
    FOR target IN
        SELECT 'TABLE ' || oid::regclass FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname LIKE 'procrastinate%'
    LOOP
        EXECUTE 'DROP ' || target || ' CASCADE';
    END LOOP;
    FOR target IN
        SELECT 'FUNCTION ' || oid::regprocedure FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace AND proname LIKE 'procrastinate%'
    LOOP
        EXECUTE 'DROP ' || target || ' CASCADE';
    END LOOP;
    FOR target IN
        SELECT 'TYPE ' || oid::regtype FROM pg_type
        WHERE typnamespace = 'public'::regnamespace AND typname LIKE 'procrastinate%'
    LOOP
        EXECUTE 'DROP ' || target || ' CASCADE';
    END LOOP;
END $$
"""


def upgrade() -> None:
    """Upgrade the database."""
    op.execute("ALTER TABLE jobs DROP COLUMN IF EXISTS ticket")
    op.execute(_DROP_PROCRASTINATE)
    op.drop_index("ix_jobs_open", "jobs")
    op.create_index(
        "ix_jobs_open",
        "jobs",
        ["device_id", sa.text("priority DESC"), "id"],
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
