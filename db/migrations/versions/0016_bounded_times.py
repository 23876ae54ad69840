"""Points hold times between a picosecond and a day: the ratio of any two of them is a number."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_RULE = "low_ns >= 0.001 AND low_ns <= median_ns AND median_ns <= high_ns AND high_ns <= 86400000000000.0"

# A point that breaks the rule stays as it is: adding the rule must not fail, and no measurement is deleted.
_VALIDATE = f"""
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM all_points WHERE NOT ({_RULE})) THEN
        ALTER TABLE all_points VALIDATE CONSTRAINT ck_all_points_times_possible;
    END IF;
END $$
"""


def upgrade() -> None:
    op.execute("ALTER TABLE all_points DROP CONSTRAINT ck_all_points_times_possible")
    op.execute(f"ALTER TABLE all_points ADD CONSTRAINT ck_all_points_times_possible CHECK ({_RULE}) NOT VALID")
    op.execute(_VALIDATE)
