"""Results can be struck out: tables hold all of them, and views of their former names those that count.

The views take inserts too, so that a worker of the version before goes on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_TABLES = ("results", "points", "comparisons")
_RENAME = """
DO $$
DECLARE entry record;
BEGIN
    FOR entry IN SELECT indexname AS name FROM pg_indexes
                 WHERE schemaname = current_schema() AND tablename = 'all_{table}' AND indexname ~ '^[a-z]+_{table}(_|$)'
    LOOP
        EXECUTE format('ALTER INDEX %I RENAME TO %I', entry.name,
                       regexp_replace(entry.name, '^([a-z]+)_{table}', '\\1_all_{table}'));
    END LOOP;
    FOR entry IN SELECT conname AS name FROM pg_constraint
                 WHERE conrelid = 'all_{table}'::regclass AND contype IN ('c', 'f') AND conname ~ '^[a-z]+_{table}_'
    LOOP
        EXECUTE format('ALTER TABLE all_{table} RENAME CONSTRAINT %I TO %I', entry.name,
                       regexp_replace(entry.name, '^([a-z]+)_{table}', '\\1_all_{table}'));
    END LOOP;
    -- PostgreSQL 18 names these too.
    FOR entry IN SELECT conname AS name FROM pg_constraint
                 WHERE conrelid = 'all_{table}'::regclass AND contype = 'n' AND conname ~ '^{table}_'
    LOOP
        EXECUTE format('ALTER TABLE all_{table} RENAME CONSTRAINT %I TO %I', entry.name, 'all_' || entry.name);
    END LOOP;
END $$
"""


def upgrade() -> None:
    """Upgrade the database."""
    op.add_column("runs", sa.Column("struck_out_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("runs", sa.Column("struck_out_reason", sa.Text(), nullable=True))
    for table in _TABLES:
        op.rename_table(table, f"all_{table}")
        op.execute(f"ALTER SEQUENCE {table}_id_seq RENAME TO all_{table}_id_seq")
        op.execute(_RENAME.format(table=table))
        is_struck_out: sa.Column[bool] = sa.Column(
            "is_struck_out", sa.Boolean(), server_default="false", nullable=False
        )
        op.add_column(f"all_{table}", is_struck_out)
        op.execute(f"CREATE VIEW {table} AS SELECT * FROM all_{table} WHERE NOT is_struck_out")
