"""Links to code hosts, their pull requests, and what the hosts are sent."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def _moment(name: str, *, now: bool = False, nullable: bool | None = None) -> sa.Column[datetime]:
    default = sa.func.now() if now else None
    return sa.Column(
        name, sa.DateTime(timezone=True), server_default=default, nullable=not now if nullable is None else nullable
    )


def _reference(
    table: str, column: str, target: str, *, on_delete: str = "CASCADE", nullable: bool = False
) -> sa.Column[int]:
    key = sa.ForeignKey(target, ondelete=on_delete, name=op.f(f"fk_{table}_{column}"))
    return sa.Column(column, sa.BigInteger(), key, nullable=nullable)


def upgrade() -> None:
    _create_links()
    op.create_table(
        "change_requests",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        _reference("change_requests", "repository_id", "repositories.id"),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("head_sha", sa.Text(), nullable=False),
        _moment("head_at"),
        sa.Column("is_fork", sa.Boolean(), nullable=False),
        sa.Column("allowed_sha", sa.Text()),
        sa.Column("allowed_by", sa.Text()),
        sa.Column("answer", sa.Text(), server_default="", nullable=False),
        _moment("created_at", now=True),
        sa.UniqueConstraint("repository_id", "number", name=op.f("uq_change_requests_repository_id_number")),
    )
    _create_messages()
    change = _reference("submissions", "change_id", "change_requests.id", on_delete="SET NULL", nullable=True)
    op.add_column("submissions", change)
    op.create_index(
        op.f("ix_submissions_change_id"), "submissions", ["change_id"], postgresql_where="change_id IS NOT NULL"
    )


def _create_links() -> None:
    op.create_table(
        "forge_links",
        _reference("forge_links", "repository_id", "repositories.id"),
        sa.Column("forge", sa.Text(), nullable=False),
        sa.Column("api_url", sa.Text()),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("token", sa.Text()),
        sa.Column("files_issues", sa.Boolean(), server_default="false", nullable=False),
        _moment("issues_since"),
        sa.Column("state", sa.Text(), server_default="unknown", nullable=False),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        _moment("checked_at"),
        _moment("paused_until"),
        _moment("created_at", now=True),
        sa.PrimaryKeyConstraint("repository_id", name=op.f("pk_forge_links")),
        sa.CheckConstraint("forge IN ('github', 'gitlab')", name=op.f("ck_forge_links_forge_known")),
        sa.CheckConstraint(
            "state IN ('unknown', 'linked', 'missing', 'refused', 'unreachable')",
            name=op.f("ck_forge_links_state_known"),
        ),
    )


def _create_messages() -> None:
    op.create_table(
        "forge_messages",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        _reference("forge_messages", "repository_id", "forge_links.repository_id"),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="", nullable=False),
        sa.Column("fields", JSONB(), server_default="{}", nullable=False),
        _reference("forge_messages", "submission_id", "submissions.id", nullable=True),
        _reference("forge_messages", "change_id", "change_requests.id", nullable=True),
        _reference("forge_messages", "regression_id", "regressions.id", nullable=True),
        sa.Column("remote_id", sa.Text()),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        _moment("next_at", now=True),
        _moment("claimed_until"),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        _moment("created_at", now=True),
        _moment("sent_at"),
        _moment("given_up_at"),
        _moment("concluded_at", now=True, nullable=True),
        sa.CheckConstraint(
            "kind IN ('link', 'check_run', 'comment', 'command', 'reaction', 'issue')",
            name=op.f("ck_forge_messages_kind_known"),
        ),
    )
    table = "forge_messages"
    op.create_index(op.f(f"ix_{table}_repository_id_subject_id"), table, ["repository_id", "subject", "id"])
    op.create_index(op.f(f"ix_{table}_repository_id_id"), table, ["repository_id", "id"])
    for column in ("submission_id", "change_id", "regression_id"):
        op.create_index(op.f(f"ix_{table}_{column}"), table, [column], postgresql_where=f"{column} IS NOT NULL")
    for name, column, where in (
        ("due", "next_at", "sent_at IS NULL AND given_up_at IS NULL"),
        ("given_up", "given_up_at", "given_up_at IS NOT NULL"),
        ("open", "id", "concluded_at IS NULL"),
        ("claimed", "claimed_until", "claimed_until IS NOT NULL"),
    ):
        op.create_index(f"ix_{table}_{name}", table, [column], postgresql_where=where)
