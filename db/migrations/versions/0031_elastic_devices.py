"""Devices whose workers a scheduler starts when jobs wait."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("devices", sa.Column("is_elastic", sa.Boolean(), server_default="false", nullable=False))
