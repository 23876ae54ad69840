"""Judgements of patches on hidden cases, and the sealed jobs that measure them."""

from __future__ import annotations

from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the database."""
    op.execute("""
    CREATE TABLE judgements (
        id BIGSERIAL NOT NULL,
        repository_id BIGINT NOT NULL,
        submission_id BIGINT,
        operator TEXT NOT NULL,
        device_key TEXT NOT NULL,
        client TEXT NOT NULL,
        salt TEXT NOT NULL,
        facts JSONB NOT NULL,
        budget_seconds FLOAT NOT NULL,
        verdict TEXT,
        receipt TEXT,
        at_least FLOAT,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        finished_at TIMESTAMP WITH TIME ZONE,
        CONSTRAINT pk_judgements PRIMARY KEY (id),
        CONSTRAINT uq_judgements_submission_id UNIQUE (submission_id),
        CONSTRAINT ck_judgements_verdict_known CHECK (verdict IN ('cheats', 'wrong', 'cannot_build', 'failed',
            'over_budget', 'cancelled', 'mixed', 'slower', 'faster', 'same')),
        CONSTRAINT fk_judgements_repository_id FOREIGN KEY (repository_id)
            REFERENCES repositories (id) ON DELETE CASCADE,
        CONSTRAINT fk_judgements_submission_id FOREIGN KEY (submission_id)
            REFERENCES submissions (id) ON DELETE SET NULL
    )
    """)
    op.execute("CREATE INDEX ix_judgements_repository_id ON judgements (repository_id)")
    op.execute("CREATE INDEX ix_judgements_client_created_at ON judgements (client, created_at)")
    op.execute("""
    CREATE TABLE sealed_jobs (
        job_id BIGINT NOT NULL,
        cases JSONB NOT NULL,
        seed BIGINT NOT NULL,
        outcome JSONB,
        CONSTRAINT pk_sealed_jobs PRIMARY KEY (job_id),
        CONSTRAINT fk_sealed_jobs_job_id FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE
    )
    """)
