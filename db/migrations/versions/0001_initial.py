"""Every table of the first version, and the queue's own."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
revision = '0001'
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_queue()
    op.create_table('devices',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('key', sa.Text(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_devices')),
    sa.UniqueConstraint('key', name=op.f('uq_devices_key'))
    )
    op.create_table('repositories',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('url', sa.Text(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_repositories')),
    sa.UniqueConstraint('name', name=op.f('uq_repositories_name'))
    )
    op.create_table('commits',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('repository_id', sa.BigInteger(), nullable=False),
    sa.Column('sha', sa.Text(), nullable=False),
    sa.Column('parent_sha', sa.Text(), nullable=True),
    sa.Column('ordinal', sa.BigInteger(), nullable=False),
    sa.Column('author', sa.Text(), nullable=False),
    sa.Column('authored_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('subject', sa.Text(), nullable=False),
    sa.Column('catalogue', postgresql.JSONB(astext_type=sa.Text()), nullable=True),
    sa.ForeignKeyConstraint(['repository_id'], ['repositories.id'], name=op.f('fk_commits_repository_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_commits')),
    sa.UniqueConstraint('repository_id', 'sha', name=op.f('uq_commits_repository_id_sha'))
    )
    op.create_index(op.f('ix_commits_repository_id_ordinal'), 'commits', ['repository_id', 'ordinal'], unique=False)
    op.create_table('environments',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('device_id', sa.BigInteger(), nullable=False),
    sa.Column('key', sa.Text(), nullable=False),
    sa.Column('facts', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('peaks', postgresql.JSONB(astext_type=sa.Text()), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.ForeignKeyConstraint(['device_id'], ['devices.id'], name=op.f('fk_environments_device_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_environments')),
    sa.UniqueConstraint('key', name=op.f('uq_environments_key'))
    )
    op.create_index(op.f('ix_environments_device_id'), 'environments', ['device_id'], unique=False)
    op.create_table('operators',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('repository_id', sa.BigInteger(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('summary', sa.Text(), server_default='', nullable=False),
    sa.ForeignKeyConstraint(['repository_id'], ['repositories.id'], name=op.f('fk_operators_repository_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_operators')),
    sa.UniqueConstraint('repository_id', 'name', name=op.f('uq_operators_repository_id_name'))
    )
    op.create_table('submissions',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('repository_id', sa.BigInteger(), nullable=False),
    sa.Column('request', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('idempotency_key', sa.Text(), nullable=True),
    sa.Column('priority', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('origin', sa.Text(), server_default='api', nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.ForeignKeyConstraint(['repository_id'], ['repositories.id'], name=op.f('fk_submissions_repository_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_submissions')),
    sa.UniqueConstraint('idempotency_key', name=op.f('uq_submissions_idempotency_key'))
    )
    op.create_index(op.f('ix_submissions_repository_id_id'), 'submissions', ['repository_id', 'id'], unique=False)
    op.create_table('workers',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('device_id', sa.BigInteger(), nullable=False),
    sa.Column('version', sa.Text(), nullable=False),
    sa.Column('started_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('heartbeat_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('stopped_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('facts', postgresql.JSONB(astext_type=sa.Text()), server_default='{}', nullable=False),
    sa.ForeignKeyConstraint(['device_id'], ['devices.id'], name=op.f('fk_workers_device_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_workers')),
    sa.UniqueConstraint('name', name=op.f('uq_workers_name'))
    )
    op.create_index(op.f('ix_workers_device_id'), 'workers', ['device_id'], unique=False)
    op.create_table('builds',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('commit_id', sa.BigInteger(), nullable=False),
    sa.Column('operator_id', sa.BigInteger(), nullable=False),
    sa.Column('environment_id', sa.BigInteger(), nullable=False),
    sa.Column('status', sa.Text(), nullable=False),
    sa.Column('key', sa.Text(), nullable=False),
    sa.Column('cached', sa.Boolean(), nullable=False),
    sa.Column('seconds', sa.Double(), nullable=False),
    sa.Column('log', sa.Text(), nullable=False),
    sa.Column('resources', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.ForeignKeyConstraint(['commit_id'], ['commits.id'], name=op.f('fk_builds_commit_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name=op.f('fk_builds_environment_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['operator_id'], ['operators.id'], name=op.f('fk_builds_operator_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_builds')),
    sa.UniqueConstraint('commit_id', 'operator_id', 'environment_id', name=op.f('uq_builds_commit_id_operator_id_environment_id'))
    )
    op.create_index(op.f('ix_builds_operator_id'), 'builds', ['operator_id'], unique=False)
    op.create_table('bundles',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('sha256', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('submission_id', sa.BigInteger(), nullable=False),
    sa.Column('imported_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.ForeignKeyConstraint(['submission_id'], ['submissions.id'], name=op.f('fk_bundles_submission_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_bundles')),
    sa.UniqueConstraint('sha256', name=op.f('uq_bundles_sha256'))
    )
    op.create_table('cases',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('operator_id', sa.BigInteger(), nullable=False),
    sa.Column('key', sa.Text(), nullable=False),
    sa.Column('sizes', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('precision', sa.Text(), nullable=False),
    sa.Column('direction', sa.Text(), nullable=False),
    sa.Column('layout', sa.Text(), nullable=False),
    sa.Column('suites', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('flops', sa.BigInteger(), nullable=False),
    sa.Column('bytes', sa.BigInteger(), nullable=False),
    sa.ForeignKeyConstraint(['operator_id'], ['operators.id'], name=op.f('fk_cases_operator_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_cases')),
    sa.UniqueConstraint('operator_id', 'key', name=op.f('uq_cases_operator_id_key'))
    )
    op.create_table('jobs',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('submission_id', sa.BigInteger(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('commit_id', sa.BigInteger(), nullable=False),
    sa.Column('base_commit_id', sa.BigInteger(), nullable=True),
    sa.Column('operator_id', sa.BigInteger(), nullable=False),
    sa.Column('device_id', sa.BigInteger(), nullable=False),
    sa.Column('spec', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('priority', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('state', sa.Text(), server_default='queued', nullable=False),
    sa.Column('attempt', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('max_attempts', sa.BigInteger(), server_default='3', nullable=False),
    sa.Column('ticket', sa.BigInteger(), nullable=True),
    sa.Column('message', sa.Text(), server_default='', nullable=False),
    sa.Column('progress', postgresql.JSONB(astext_type=sa.Text()), nullable=True),
    sa.Column('judged_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('started_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('finished_at', sa.DateTime(timezone=True), nullable=True),
    sa.CheckConstraint("kind IN ('check', 'bench', 'profile', 'compare')", name=op.f('ck_jobs_kind_known')),
    sa.CheckConstraint("state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name=op.f('ck_jobs_state_known')),
    sa.ForeignKeyConstraint(['base_commit_id'], ['commits.id'], name=op.f('fk_jobs_base_commit_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['commit_id'], ['commits.id'], name=op.f('fk_jobs_commit_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['device_id'], ['devices.id'], name=op.f('fk_jobs_device_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['operator_id'], ['operators.id'], name=op.f('fk_jobs_operator_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['submission_id'], ['submissions.id'], name=op.f('fk_jobs_submission_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_jobs'))
    )
    op.create_index(op.f('ix_jobs_commit_id'), 'jobs', ['commit_id'], unique=False)
    op.create_index('ix_jobs_open', 'jobs', ['device_id', 'priority', 'id'], unique=False, postgresql_where="state IN ('queued', 'running')")
    op.create_index(op.f('ix_jobs_state_id'), 'jobs', ['state', 'id'], unique=False)
    op.create_index(op.f('ix_jobs_submission_id_id'), 'jobs', ['submission_id', 'id'], unique=False)
    op.create_index('ix_jobs_unjudged', 'jobs', ['id'], unique=False, postgresql_where="state IN ('done', 'failed', 'cancelled') AND judged_at IS NULL")
    op.create_table('variants',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('operator_id', sa.BigInteger(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('idea', sa.Text(), server_default='', nullable=False),
    sa.ForeignKeyConstraint(['operator_id'], ['operators.id'], name=op.f('fk_variants_operator_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_variants')),
    sa.UniqueConstraint('operator_id', 'name', name=op.f('uq_variants_operator_id_name'))
    )
    op.create_table('runs',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('job_id', sa.BigInteger(), nullable=False),
    sa.Column('attempt', sa.BigInteger(), nullable=False),
    sa.Column('worker_id', sa.BigInteger(), nullable=True),
    sa.Column('environment_id', sa.BigInteger(), nullable=True),
    sa.Column('state', sa.Text(), server_default='running', nullable=False),
    sa.Column('message', sa.Text(), server_default='', nullable=False),
    sa.Column('started_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('heartbeat_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('finished_at', sa.DateTime(timezone=True), nullable=True),
    sa.CheckConstraint("state IN ('running', 'done', 'failed', 'lost', 'cancelled')", name=op.f('ck_runs_state_known')),
    sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name=op.f('fk_runs_environment_id'), ondelete='SET NULL'),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], name=op.f('fk_runs_job_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['worker_id'], ['workers.id'], name=op.f('fk_runs_worker_id'), ondelete='SET NULL'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_runs')),
    sa.UniqueConstraint('job_id', 'attempt', name=op.f('uq_runs_job_id_attempt'))
    )
    op.create_index(op.f('ix_runs_environment_id'), 'runs', ['environment_id'], unique=False)
    op.create_index('ix_runs_running', 'runs', ['heartbeat_at'], unique=False, postgresql_where="state = 'running'")
    op.create_index(op.f('ix_runs_worker_id'), 'runs', ['worker_id'], unique=False)
    op.create_table('series',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('operator_id', sa.BigInteger(), nullable=False),
    sa.Column('case_id', sa.BigInteger(), nullable=False),
    sa.Column('variant_id', sa.BigInteger(), nullable=False),
    sa.Column('device_id', sa.BigInteger(), nullable=False),
    sa.Column('protocol', sa.Text(), nullable=False),
    sa.Column('metric', sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(['case_id'], ['cases.id'], name=op.f('fk_series_case_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['device_id'], ['devices.id'], name=op.f('fk_series_device_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['operator_id'], ['operators.id'], name=op.f('fk_series_operator_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['variant_id'], ['variants.id'], name=op.f('fk_series_variant_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_series')),
    sa.UniqueConstraint('operator_id', 'device_id', 'case_id', 'variant_id', 'metric', 'protocol', name=op.f('uq_series_operator_id_device_id_case_id_variant_id_metric_protocol'))
    )
    op.create_index(op.f('ix_series_device_id_metric'), 'series', ['device_id', 'metric'], unique=False)
    op.create_table('comparisons',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('run_id', sa.BigInteger(), nullable=False),
    sa.Column('series_id', sa.BigInteger(), nullable=False),
    sa.Column('base_commit_id', sa.BigInteger(), nullable=False),
    sa.Column('head_commit_id', sa.BigInteger(), nullable=False),
    sa.Column('status', sa.Text(), nullable=False),
    sa.Column('message', sa.Text(), server_default='', nullable=False),
    sa.Column('base_ns', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('head_ns', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.ForeignKeyConstraint(['base_commit_id'], ['commits.id'], name=op.f('fk_comparisons_base_commit_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['head_commit_id'], ['commits.id'], name=op.f('fk_comparisons_head_commit_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['run_id'], ['runs.id'], name=op.f('fk_comparisons_run_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['series_id'], ['series.id'], name=op.f('fk_comparisons_series_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_comparisons')),
    sa.UniqueConstraint('run_id', 'series_id', name=op.f('uq_comparisons_run_id_series_id'))
    )
    op.create_index(op.f('ix_comparisons_series_id'), 'comparisons', ['series_id'], unique=False)
    op.create_table('results',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('run_id', sa.BigInteger(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('commit_id', sa.BigInteger(), nullable=False),
    sa.Column('ordinal', sa.BigInteger(), nullable=False),
    sa.Column('operator_id', sa.BigInteger(), nullable=False),
    sa.Column('variant_id', sa.BigInteger(), nullable=False),
    sa.Column('case_id', sa.BigInteger(), nullable=False),
    sa.Column('device_id', sa.BigInteger(), nullable=False),
    sa.Column('environment_id', sa.BigInteger(), nullable=False),
    sa.Column('status', sa.Text(), nullable=False),
    sa.Column('message', sa.Text(), server_default='', nullable=False),
    sa.Column('details', postgresql.JSONB(astext_type=sa.Text()), server_default='{}', nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.CheckConstraint("status IN ('ok', 'wrong', 'crashed', 'timed_out', 'out_of_memory', 'build_failed', 'unsupported', 'skipped')", name=op.f('ck_results_status_known')),
    sa.ForeignKeyConstraint(['case_id'], ['cases.id'], name=op.f('fk_results_case_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['commit_id'], ['commits.id'], name=op.f('fk_results_commit_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['device_id'], ['devices.id'], name=op.f('fk_results_device_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name=op.f('fk_results_environment_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['operator_id'], ['operators.id'], name=op.f('fk_results_operator_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['run_id'], ['runs.id'], name=op.f('fk_results_run_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['variant_id'], ['variants.id'], name=op.f('fk_results_variant_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_results')),
    sa.UniqueConstraint('run_id', 'commit_id', 'variant_id', 'case_id', name=op.f('uq_results_run_id_commit_id_variant_id_case_id'))
    )
    op.create_index(op.f('ix_results_case_id'), 'results', ['case_id'], unique=False)
    op.create_index(op.f('ix_results_commit_id_operator_id_kind_device_id'), 'results', ['commit_id', 'operator_id', 'kind', 'device_id'], unique=False)
    op.create_index(op.f('ix_results_operator_id_device_id_kind_ordinal'), 'results', ['operator_id', 'device_id', 'kind', 'ordinal'], unique=False)
    op.create_index(op.f('ix_results_variant_id_case_id_device_id_kind_ordinal_id'), 'results', ['variant_id', 'case_id', 'device_id', 'kind', 'ordinal', 'id'], unique=False)
    op.create_table('run_logs',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('run_id', sa.BigInteger(), nullable=False),
    sa.Column('text', sa.Text(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.ForeignKeyConstraint(['run_id'], ['runs.id'], name=op.f('fk_run_logs_run_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_run_logs'))
    )
    op.create_index(op.f('ix_run_logs_run_id_id'), 'run_logs', ['run_id', 'id'], unique=False)
    op.create_table('points',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('series_id', sa.BigInteger(), nullable=False),
    sa.Column('commit_id', sa.BigInteger(), nullable=False),
    sa.Column('ordinal', sa.BigInteger(), nullable=False),
    sa.Column('environment_id', sa.BigInteger(), nullable=False),
    sa.Column('result_id', sa.BigInteger(), nullable=False),
    sa.Column('median_ns', sa.Double(), nullable=False),
    sa.Column('low_ns', sa.Double(), nullable=False),
    sa.Column('high_ns', sa.Double(), nullable=False),
    sa.Column('noise', sa.Double(), nullable=False),
    sa.Column('count', sa.BigInteger(), nullable=False),
    sa.Column('dropped', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('roofline_share', sa.Double(), nullable=True),
    sa.Column('bound', sa.Text(), nullable=True),
    sa.Column('measured_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.ForeignKeyConstraint(['commit_id'], ['commits.id'], name=op.f('fk_points_commit_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name=op.f('fk_points_environment_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['result_id'], ['results.id'], name=op.f('fk_points_result_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['series_id'], ['series.id'], name=op.f('fk_points_series_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_points')),
    sa.UniqueConstraint('series_id', 'result_id', name=op.f('uq_points_series_id_result_id'))
    )
    op.create_index(op.f('ix_points_commit_id'), 'points', ['commit_id'], unique=False)
    op.create_index(op.f('ix_points_result_id'), 'points', ['result_id'], unique=False)
    op.create_index(op.f('ix_points_series_id_ordinal_id'), 'points', ['series_id', 'ordinal', 'id'], unique=False)
    op.create_table('traces',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('result_id', sa.BigInteger(), nullable=False),
    sa.Column('size', sa.BigInteger(), nullable=False),
    sa.Column('compressed_size', sa.BigInteger(), nullable=False),
    sa.Column('sha256', sa.Text(), nullable=False),
    sa.Column('runtime_calls', postgresql.JSONB(astext_type=sa.Text()), server_default='{}', nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.ForeignKeyConstraint(['result_id'], ['results.id'], name=op.f('fk_traces_result_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_traces'))
    )
    op.create_index(op.f('ix_traces_result_id'), 'traces', ['result_id'], unique=False)
    op.create_table('regressions',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('operator_id', sa.BigInteger(), nullable=False),
    sa.Column('device_id', sa.BigInteger(), nullable=False),
    sa.Column('base_commit_id', sa.BigInteger(), nullable=False),
    sa.Column('head_commit_id', sa.BigInteger(), nullable=False),
    sa.Column('direction', sa.Text(), nullable=False),
    sa.Column('verdict', sa.Text(), server_default='suspected', nullable=False),
    sa.Column('state', sa.Text(), server_default='new', nullable=False),
    sa.Column('ratio', sa.Double(), nullable=False),
    sa.Column('low', sa.Double(), nullable=True),
    sa.Column('high', sa.Double(), nullable=True),
    sa.Column('compare_job_id', sa.BigInteger(), nullable=True),
    sa.Column('base_trace_id', sa.BigInteger(), nullable=True),
    sa.Column('head_trace_id', sa.BigInteger(), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('decided_at', sa.DateTime(timezone=True), nullable=True),
    sa.CheckConstraint("state IN ('new', 'acknowledged', 'accepted', 'fixed', 'invalid')", name=op.f('ck_regressions_state_known')),
    sa.CheckConstraint("verdict IN ('suspected', 'confirmed', 'dismissed', 'unsure')", name=op.f('ck_regressions_verdict_known')),
    sa.ForeignKeyConstraint(['base_commit_id'], ['commits.id'], name=op.f('fk_regressions_base_commit_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['base_trace_id'], ['traces.id'], name=op.f('fk_regressions_base_trace_id'), ondelete='SET NULL'),
    sa.ForeignKeyConstraint(['compare_job_id'], ['jobs.id'], name=op.f('fk_regressions_compare_job_id'), ondelete='SET NULL'),
    sa.ForeignKeyConstraint(['device_id'], ['devices.id'], name=op.f('fk_regressions_device_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['head_commit_id'], ['commits.id'], name=op.f('fk_regressions_head_commit_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['head_trace_id'], ['traces.id'], name=op.f('fk_regressions_head_trace_id'), ondelete='SET NULL'),
    sa.ForeignKeyConstraint(['operator_id'], ['operators.id'], name=op.f('fk_regressions_operator_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_regressions')),
    sa.UniqueConstraint('operator_id', 'device_id', 'base_commit_id', 'head_commit_id', 'direction', name=op.f('uq_regressions_operator_id_device_id_base_commit_id_head_commit_id_direction'))
    )
    op.create_index(op.f('ix_regressions_compare_job_id'), 'regressions', ['compare_job_id'], unique=False)
    op.create_index(op.f('ix_regressions_verdict_state_id'), 'regressions', ['verdict', 'state', 'id'], unique=False)
    op.create_table('samples',
    sa.Column('point_id', sa.BigInteger(), nullable=False),
    sa.Column('data', sa.LargeBinary(), nullable=False),
    sa.ForeignKeyConstraint(['point_id'], ['points.id'], name=op.f('fk_samples_point_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('point_id', name=op.f('pk_samples'))
    )
    op.create_table('trace_chunks',
    sa.Column('trace_id', sa.BigInteger(), nullable=False),
    sa.Column('index', sa.BigInteger(), nullable=False),
    sa.Column('data', sa.LargeBinary(), nullable=False),
    sa.ForeignKeyConstraint(['trace_id'], ['traces.id'], name=op.f('fk_trace_chunks_trace_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('trace_id', 'index', name=op.f('pk_trace_chunks'))
    )
    op.create_table('trace_kernels',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('trace_id', sa.BigInteger(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('calls', sa.BigInteger(), nullable=False),
    sa.Column('total_ns', sa.Double(), nullable=False),
    sa.Column('mean_ns', sa.Double(), nullable=False),
    sa.Column('share', sa.Double(), nullable=False),
    sa.Column('details', postgresql.JSONB(astext_type=sa.Text()), server_default='{}', nullable=False),
    sa.ForeignKeyConstraint(['trace_id'], ['traces.id'], name=op.f('fk_trace_kernels_trace_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_trace_kernels'))
    )
    op.create_index(op.f('ix_trace_kernels_trace_id_total_ns'), 'trace_kernels', ['trace_id', 'total_ns'], unique=False)
    op.create_table('regression_notes',
    sa.Column('id', sa.BigInteger(), nullable=False),
    sa.Column('regression_id', sa.BigInteger(), nullable=False),
    sa.Column('author', sa.Text(), nullable=False),
    sa.Column('state', sa.Text(), nullable=False),
    sa.Column('note', sa.Text(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.ForeignKeyConstraint(['regression_id'], ['regressions.id'], name=op.f('fk_regression_notes_regression_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_regression_notes'))
    )
    op.create_index(op.f('ix_regression_notes_regression_id_id'), 'regression_notes', ['regression_id', 'id'], unique=False)
    op.create_table('regression_series',
    sa.Column('regression_id', sa.BigInteger(), nullable=False),
    sa.Column('series_id', sa.BigInteger(), nullable=False),
    sa.Column('suspected_ratio', sa.Double(), nullable=False),
    sa.Column('verdict', sa.Text(), server_default='suspected', nullable=False),
    sa.Column('ratio', sa.Double(), nullable=True),
    sa.Column('low', sa.Double(), nullable=True),
    sa.Column('high', sa.Double(), nullable=True),
    sa.ForeignKeyConstraint(['regression_id'], ['regressions.id'], name=op.f('fk_regression_series_regression_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['series_id'], ['series.id'], name=op.f('fk_regression_series_series_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('regression_id', 'series_id', name=op.f('pk_regression_series'))
    )
    op.create_index(op.f('ix_regression_series_series_id'), 'regression_series', ['series_id'], unique=False)


def _create_queue() -> None:
    schema = Path(__file__).parent.parent / "procrastinate_3_10.sql"
    # Straight through the driver: the file holds many statements, and percent signs that are none of ours.
    driver_connection = op.get_bind().connection.driver_connection
    assert driver_connection is not None
    driver_connection.execute(schema.read_text(encoding="utf-8"))
