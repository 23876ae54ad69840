"""Alembic runs this for every command; db.migrate hands it the connection, so there is no configuration file."""

from __future__ import annotations

from alembic import context

from warpwatch.db.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
