"""Devices whose workers a scheduler starts when jobs wait."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("devices", sa.Column("is_elastic", sa.Boolean(), server_default="false", nullable=False))
