"""Steps of series where the environment of a device changed, and their causes."""

from __future__ import annotations

from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None

_CHANGES = """
CREATE TABLE environment_changes (
    id BIGSERIAL CONSTRAINT pk_environment_changes PRIMARY KEY,
    operator_id BIGINT NOT NULL
        CONSTRAINT fk_environment_changes_operator_id REFERENCES operators ON DELETE CASCADE,
    device_id BIGINT NOT NULL CONSTRAINT fk_environment_changes_device_id REFERENCES devices ON DELETE CASCADE,
    commit_id BIGINT NOT NULL CONSTRAINT fk_environment_changes_commit_id REFERENCES commits ON DELETE CASCADE,
    base_environment_id BIGINT NOT NULL
        CONSTRAINT fk_environment_changes_base_environment_id REFERENCES environments ON DELETE CASCADE,
    head_environment_id BIGINT NOT NULL
        CONSTRAINT fk_environment_changes_head_environment_id REFERENCES environments ON DELETE CASCADE,
    compare_job_id BIGINT CONSTRAINT fk_environment_changes_compare_job_id REFERENCES jobs ON DELETE SET NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT uq_environment_changes_place
        UNIQUE (operator_id, device_id, base_environment_id, head_environment_id)
)
"""
_STEPS = """
CREATE TABLE environment_steps (
    change_id BIGINT NOT NULL
        CONSTRAINT fk_environment_steps_change_id REFERENCES environment_changes ON DELETE CASCADE,
    series_id BIGINT NOT NULL CONSTRAINT fk_environment_steps_series_id REFERENCES series ON DELETE CASCADE,
    cause TEXT NOT NULL CONSTRAINT ck_environment_steps_cause_known CHECK (cause IN (
        'code', 'toolchain', 'method', 'card', 'noise', 'unknown')),
    ratio DOUBLE PRECISION NOT NULL,
    low DOUBLE PRECISION NOT NULL,
    high DOUBLE PRECISION NOT NULL,
    is_decided BOOLEAN NOT NULL,
    CONSTRAINT pk_environment_steps PRIMARY KEY (change_id, series_id)
)
"""


def upgrade() -> None:
    """Upgrade the database."""
    op.execute(_CHANGES)
    for column in ("device_id", "base_environment_id", "head_environment_id", "compare_job_id"):
        op.create_index(f"ix_environment_changes_{column}", "environment_changes", [column])
    op.create_index("ix_environment_changes_commit_id_operator_id", "environment_changes", ["commit_id", "operator_id"])
    op.execute(_STEPS)
    op.create_index("ix_environment_steps_series_id", "environment_steps", ["series_id"])
