"""Files of results that wait for a commit that the repository does not hold yet."""

from __future__ import annotations

from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the database."""
    op.execute("""
        CREATE TABLE awaited_files (
            id BIGSERIAL CONSTRAINT pk_awaited_files PRIMARY KEY,
            repository_id BIGINT NOT NULL
                CONSTRAINT fk_awaited_files_repository_id REFERENCES repositories ON DELETE CASCADE,
            state TEXT NOT NULL DEFAULT 'waiting'
                CONSTRAINT ck_awaited_files_state_known CHECK (state IN ('waiting', 'imported', 'refused')),
            message TEXT NOT NULL DEFAULT '',
            sha256 TEXT NOT NULL CONSTRAINT uq_awaited_files_sha256 UNIQUE,
            commit_sha TEXT NOT NULL,
            name TEXT NOT NULL,
            format TEXT NOT NULL,
            program TEXT,
            device TEXT,
            confirm BOOLEAN NOT NULL,
            content BYTEA,
            submission_id BIGINT
                CONSTRAINT fk_awaited_files_submission_id REFERENCES submissions ON DELETE SET NULL,
            created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
            ended_at TIMESTAMPTZ
        )
    """)
    op.execute("CREATE INDEX ix_awaited_files_repository_id_id ON awaited_files (repository_id, id)")
    op.execute("CREATE INDEX ix_awaited_files_submission_id ON awaited_files (submission_id)")
