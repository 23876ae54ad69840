"""Every table of version 0.1, but for those of the queue that 0044 removes."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0043"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables. A database of version 0.1 has them and is not touched."""
    schema = Path(__file__).parent.parent / "schema_0043.sql"
    # Straight through the driver: the file holds many statements.
    driver_connection = op.get_bind().connection.driver_connection
    assert driver_connection is not None
    driver_connection.execute(schema.read_text(encoding="utf-8"))
