"""What code and toolchain each did to a series whose environment changed, steps by another card, and indexes of costs."""

from __future__ import annotations

from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None

_PLACE = "operator_id, device_id, base_environment_id, head_environment_id, base_card_id, head_card_id"


def upgrade() -> None:
    """Upgrade the database."""
    op.execute("ALTER TABLE all_comparisons ADD COLUMN cells JSONB")
    op.execute("CREATE OR REPLACE VIEW comparisons AS SELECT * FROM all_comparisons WHERE NOT is_struck_out")
    for column, table in (("head_commit_id", "commits"), ("base_card_id", "cards"), ("head_card_id", "cards")):
        action = "SET NULL" if table == "commits" else "CASCADE"
        op.execute(
            f"ALTER TABLE environment_changes ADD COLUMN {column} BIGINT "
            f"CONSTRAINT fk_environment_changes_{column} REFERENCES {table} ON DELETE {action}"
        )
        op.create_index(f"ix_environment_changes_{column}", "environment_changes", [column])
    op.execute("ALTER TABLE environment_changes ADD COLUMN is_by_commit BOOLEAN DEFAULT false NOT NULL")
    op.execute("ALTER TABLE environment_changes DROP CONSTRAINT uq_environment_changes_place")
    op.execute(
        f"ALTER TABLE environment_changes ADD CONSTRAINT uq_environment_changes_place UNIQUE NULLS NOT DISTINCT "
        f"({_PLACE})"
    )
    op.execute(
        "CREATE INDEX ix_trades_costs ON trades (operator_id) WHERE is_worse AND is_exact AND accepted_by IS NULL"
    )
    op.execute("CREATE INDEX ix_trades_gains ON trades (operator_id, device_id, kind, variant_id) WHERE NOT is_worse")
    op.execute("ALTER TABLE environment_steps DROP CONSTRAINT ck_environment_steps_cause_known")
    op.execute(
        "ALTER TABLE environment_steps ADD CONSTRAINT ck_environment_steps_cause_known CHECK (cause IN ("
        "'code', 'toolchain', 'both', 'method', 'card', 'noise', 'unknown'))"
    )
    for part in ("code", "toolchain"):
        for column in ("ratio", "low", "high"):
            op.execute(f"ALTER TABLE environment_steps ADD COLUMN {part}_{column} DOUBLE PRECISION")
