"""Columns for what was decided by the words of messages: reasons, the commit that a job is unchanged since, examples."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_REASONS = "'unchanged', 'base_failed', 'interpreter_mismatch', 'unfit_device'"

# The sentences of revision 0005 stand here and nowhere else; later ones may be reworded.
_UNCHANGED_JOBS = """
UPDATE jobs SET reason = 'unchanged', unchanged_since_commit_id = (
    SELECT commits.id FROM submissions JOIN commits ON commits.repository_id = submissions.repository_id
    WHERE submissions.id = jobs.submission_id
      AND commits.sha = (regexp_match(jobs.message, '^not measured: its sources are those of ([0-9a-f]+)$'))[1])
WHERE state = 'done' AND message LIKE 'not measured: its sources are those of %'
"""
_UNFIT_JOBS = """
UPDATE jobs SET reason = 'unfit_device'
WHERE state IN ('queued', 'running', 'failed') AND strpos(message, ' is not fit to be measured on: ') > 0
"""
_UNFIT_RUNS = """
UPDATE runs SET reason = 'unfit_device' WHERE state = 'failed' AND strpos(message, ' is not fit to be measured on: ') > 0
"""
_MISMATCHED_JOBS = """
UPDATE jobs SET reason = 'interpreter_mismatch'
WHERE kind = 'compare' AND state = 'failed' AND message LIKE 'the two commits ask for different interpreters%'
"""
_MISMATCHED_RUNS = """
UPDATE runs SET reason = 'interpreter_mismatch' FROM jobs
WHERE jobs.id = runs.job_id AND jobs.kind = 'compare' AND runs.state = 'failed'
  AND runs.message LIKE 'the two commits ask for different interpreters%'
"""
_FAILED_BASES = "UPDATE comparisons SET reason = 'base_failed' WHERE status <> 'ok' AND message LIKE 'base:%'"
# A repository that a person registered under such a name, and had measured, is no example.
_EXAMPLES = """
UPDATE repositories SET is_example = true
WHERE name LIKE 'example%' AND NOT EXISTS (
    SELECT FROM submissions WHERE repository_id = repositories.id AND origin NOT IN ('example', 'bundle'))
"""


def upgrade() -> None:
    for table in ("jobs", "runs", "comparisons"):
        op.add_column(table, sa.Column("reason", sa.Text(), nullable=True))
    commit = sa.ForeignKey("commits.id", ondelete="SET NULL")
    op.add_column("jobs", sa.Column("unchanged_since_commit_id", sa.BigInteger(), commit, nullable=True))
    example: sa.Column[bool] = sa.Column("is_example", sa.Boolean(), server_default="false", nullable=False)
    op.add_column("repositories", example)
    for statement in (_UNCHANGED_JOBS, _UNFIT_JOBS, _UNFIT_RUNS, _MISMATCHED_JOBS, _MISMATCHED_RUNS, _FAILED_BASES, _EXAMPLES):
        op.execute(statement)
    for table in ("jobs", "runs", "comparisons"):
        op.create_check_constraint(op.f(f"ck_{table}_reason_known"), table, f"reason IN ({_REASONS})")
