"""What commits changed beside their times: memory, errors, bits, machine code and waiting times."""

from __future__ import annotations

from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None

_TABLE = """
CREATE TABLE trades (
    id BIGSERIAL CONSTRAINT pk_trades PRIMARY KEY,
    commit_id BIGINT NOT NULL CONSTRAINT fk_trades_commit_id REFERENCES commits ON DELETE CASCADE,
    operator_id BIGINT NOT NULL CONSTRAINT fk_trades_operator_id REFERENCES operators ON DELETE CASCADE,
    device_id BIGINT NOT NULL CONSTRAINT fk_trades_device_id REFERENCES devices ON DELETE CASCADE,
    variant_id BIGINT CONSTRAINT fk_trades_variant_id REFERENCES variants ON DELETE CASCADE,
    case_id BIGINT CONSTRAINT fk_trades_case_id REFERENCES cases ON DELETE CASCADE,
    kind TEXT NOT NULL CONSTRAINT ck_trades_kind_known CHECK (kind IN (
        'accuracy', 'determinism', 'batch', 'memory', 'kept', 'code', 'energy', 'compile', 'load', 'first_call')),
    is_worse BOOLEAN NOT NULL,
    is_exact BOOLEAN NOT NULL,
    is_faster BOOLEAN NOT NULL,
    tensor TEXT NOT NULL,
    metric TEXT NOT NULL,
    before DOUBLE PRECISION,
    after DOUBLE PRECISION,
    change DOUBLE PRECISION,
    cases BIGINT NOT NULL,
    accepted_by TEXT,
    accepted_at TIMESTAMP WITH TIME ZONE,
    found_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT uq_trades_place
        UNIQUE NULLS NOT DISTINCT (commit_id, operator_id, device_id, variant_id, kind, is_worse)
)
"""


def upgrade() -> None:
    """Upgrade the database."""
    op.execute(_TABLE)
    for column in ("operator_id", "device_id", "variant_id", "case_id"):
        op.create_index(f"ix_trades_{column}", "trades", [column])
