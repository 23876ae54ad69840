"""Trials, triage, schedules and callbacks: what turns history into decisions that people work with."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_NOW = sa.text("now()")
_JSON = postgresql.JSONB(astext_type=sa.Text())


def upgrade() -> None:
    _repositories()
    _regressions()
    _trials()
    _schedules()
    _callbacks()


def _text(name: str, default: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=default is None, server_default=default)


def _moment(name: str, *, now: bool = False) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=not now, server_default=_NOW if now else None)


def _link(name: str, table: str, *, nullable: bool = False) -> sa.Column[int]:
    """A reference; an optional one outlives the row that it names."""
    return sa.Column(name, sa.BigInteger(), sa.ForeignKey(f"{table}.id", ondelete="SET NULL" if nullable else "CASCADE"), nullable=nullable)


def _repositories() -> None:
    for name in ("branch", "webhook_secret", "status_url", "status_token"):
        op.add_column("repositories", _text(name))


def _regressions() -> None:
    op.alter_column("regressions", "ratio", nullable=True)
    op.add_column("regressions", _text("cause", "history"))
    for name in ("assignee", "link"):
        op.add_column("regressions", _text(name))
    op.add_column("regressions", sa.Column("due_on", sa.Date(), nullable=True))
    for name in ("settled_at", "triaged_at"):
        op.add_column("regressions", _moment(name))
    op.execute("UPDATE regressions SET settled_at = decided_at")
    op.create_check_constraint(op.f("ck_regressions_direction_known"), "regressions", "direction IN ('slower', 'faster', 'broken')")
    op.create_check_constraint(op.f("ck_regressions_cause_known"), "regressions", "cause IN ('history', 'code', 'status')")
    op.create_index(op.f("ix_regressions_head_commit_id"), "regressions", ["head_commit_id"])
    op.create_index("ix_regressions_unsettled", "regressions", ["id"], postgresql_where=sa.text("settled_at IS NULL"))
    op.alter_column("regression_series", "suspected_ratio", nullable=True)
    for name in ("base_status", "head_status"):
        op.add_column("regression_series", _text(name))
    op.add_column("regression_notes", sa.Column("changes", _JSON, server_default="{}", nullable=False))


def _trials() -> None:
    op.create_table(
        "trials",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        _link("regression_id", "regressions"),
        sa.Column("job_id", sa.BigInteger(), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, unique=True),
        sa.Column("purpose", sa.Text(), nullable=False),
        _link("base_commit_id", "commits"),
        _link("head_commit_id", "commits"),
        _text("answer", "pending"),
        *(sa.Column(name, sa.Double(), nullable=True) for name in ("ratio", "low", "high")),
        _text("message", ""),
        _moment("created_at", now=True),
        _moment("answered_at"),
        sa.CheckConstraint("purpose IN ('confirm', 'retry', 'bisect', 'prove')", name=op.f("ck_trials_purpose_known")),
        sa.CheckConstraint("answer IN ('pending', 'changed', 'same', 'unsure', 'skipped')", name=op.f("ck_trials_answer_known")),
    )
    op.create_index(op.f("ix_trials_regression_id_id"), "trials", ["regression_id", "id"])


def _schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        _link("repository_id", "repositories"),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("name", "kind", "cron")),
        sa.Column("request", _JSON, nullable=False),
        sa.Column("budget_minutes", sa.BigInteger(), nullable=False),
        sa.Column("is_enabled", sa.Boolean(), server_default="true", nullable=False),
        _moment("last_at"),
        _moment("next_at"),
        _text("message", ""),
        _moment("created_at", now=True),
        sa.UniqueConstraint("repository_id", "name"),
        sa.CheckConstraint("kind IN ('suite', 'rerun', 'backfill')", name=op.f("ck_schedules_kind_known")),
    )
    op.create_index("ix_schedules_due", "schedules", ["next_at"], postgresql_where=sa.text("is_enabled"))
    op.add_column("submissions", _link("base_commit_id", "commits", nullable=True))
    op.add_column("submissions", _link("schedule_id", "schedules", nullable=True))
    op.create_index(op.f("ix_submissions_schedule_id"), "submissions", ["schedule_id"])
    op.create_index(op.f("ix_runs_finished_at"), "runs", ["finished_at"])


def _callbacks() -> None:
    op.create_table(
        "callbacks",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        _link("submission_id", "submissions"),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("body", _JSON, nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        _moment("next_at", now=True),
        _text("message", ""),
        _moment("created_at", now=True),
        _moment("sent_at"),
        _moment("given_up_at"),
        _moment("concluded_at"),
    )
    op.create_index("ix_callbacks_open", "callbacks", ["id"], postgresql_where=sa.text("concluded_at IS NULL"))
    op.create_index(op.f("ix_callbacks_submission_id"), "callbacks", ["submission_id"])
    op.create_index("ix_callbacks_due", "callbacks", ["next_at"], postgresql_where=sa.text("sent_at IS NULL AND given_up_at IS NULL"))
