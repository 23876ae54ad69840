"""Points hold times that a device can show: positive, finite and ascending."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_RULE = "low_ns > 0 AND low_ns <= median_ns AND median_ns <= high_ns AND high_ns < 'Infinity'"

# A point that breaks the rule stays as it is: adding the rule must not fail, and no measurement is deleted.
_VALIDATE = f"""
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM points WHERE NOT ({_RULE})) THEN
        ALTER TABLE points VALIDATE CONSTRAINT ck_points_times_possible;
    END IF;
END $$
"""


def upgrade() -> None:
    op.execute(f"ALTER TABLE points ADD CONSTRAINT ck_points_times_possible CHECK ({_RULE}) NOT VALID")
    op.execute(_VALIDATE)
