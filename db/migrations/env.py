"""Alembic runs this for every command; db.migrate hands it the connection, so there is no configuration file."""

from __future__ import annotations

from alembic import context

from warpwatch.db.metadata import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
