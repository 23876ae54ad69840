-- Every table, index and view as of revision 0043.

CREATE TABLE accounts (
    id BIGSERIAL NOT NULL,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    is_role_fixed BOOLEAN DEFAULT 'true' NOT NULL,
    issuer TEXT,
    subject TEXT,
    invitation_hash TEXT,
    invitation_expires_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    disabled_at TIMESTAMP WITH TIME ZONE,
    last_used_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_accounts PRIMARY KEY (id),
    CONSTRAINT ck_accounts_role_known CHECK (role IN ('viewer', 'submitter', 'triager', 'administrator')),
    CONSTRAINT uq_accounts_issuer_subject UNIQUE (issuer, subject),
    CONSTRAINT uq_accounts_name UNIQUE (name),
    CONSTRAINT uq_accounts_invitation_hash UNIQUE (invitation_hash)
);

CREATE TABLE audit_entries (
    id BIGSERIAL NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    caller TEXT NOT NULL,
    method TEXT NOT NULL,
    route TEXT NOT NULL,
    path TEXT NOT NULL,
    status BIGINT NOT NULL,
    request_id TEXT,
    CONSTRAINT pk_audit_entries PRIMARY KEY (id)
);

CREATE TABLE devices (
    id BIGSERIAL NOT NULL,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    is_elastic BOOLEAN DEFAULT 'false' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_devices PRIMARY KEY (id),
    CONSTRAINT uq_devices_key UNIQUE (key)
);

CREATE TABLE ended_sessions (
    name TEXT NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_ended_sessions PRIMARY KEY (name)
);
CREATE INDEX ix_ended_sessions_expires_at ON ended_sessions (expires_at);

CREATE TABLE repositories (
    id BIGSERIAL NOT NULL,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    definitions_url TEXT,
    definitions_ref TEXT,
    definitions_sha TEXT,
    branch TEXT,
    webhook_secret TEXT,
    status_url TEXT,
    status_token TEXT,
    is_example BOOLEAN DEFAULT 'false' NOT NULL,
    deleted_at TIMESTAMP WITH TIME ZONE,
    branches_key TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_repositories PRIMARY KEY (id),
    CONSTRAINT uq_repositories_name UNIQUE (name)
);

CREATE TABLE worker_keys (
    id BIGSERIAL NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    last_used_at TIMESTAMP WITH TIME ZONE,
    revoked_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_worker_keys PRIMARY KEY (id),
    CONSTRAINT uq_worker_keys_name UNIQUE (name),
    CONSTRAINT uq_worker_keys_digest UNIQUE (digest)
);

CREATE TABLE access_tokens (
    id BIGSERIAL NOT NULL,
    account_id BIGINT,
    person TEXT NOT NULL,
    purpose TEXT DEFAULT '' NOT NULL,
    token_hash TEXT NOT NULL,
    scope TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE,
    revoked_at TIMESTAMP WITH TIME ZONE,
    last_used_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_access_tokens PRIMARY KEY (id),
    CONSTRAINT ck_access_tokens_scope_known CHECK (scope IN ('read', 'submit', 'triage', 'administer')),
    CONSTRAINT fk_access_tokens_account_id FOREIGN KEY(account_id) REFERENCES accounts (id),
    CONSTRAINT uq_access_tokens_token_hash UNIQUE (token_hash)
);
CREATE INDEX ix_access_tokens_account_id ON access_tokens (account_id);

CREATE TABLE branches (
    id BIGSERIAL NOT NULL,
    repository_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    is_watched BOOLEAN DEFAULT 'false' NOT NULL,
    head_sha TEXT NOT NULL,
    fork_at BIGINT,
    fork_sha TEXT,
    merge_base_sha TEXT,
    merged_sha TEXT,
    CONSTRAINT pk_branches PRIMARY KEY (id),
    CONSTRAINT ck_branches_kind_known CHECK (kind IN ('branch', 'request', 'merged')),
    CONSTRAINT uq_branches_repository_id_name UNIQUE (repository_id, name),
    CONSTRAINT fk_branches_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE
);
CREATE INDEX ix_branches_merged ON branches (id) WHERE merged_sha IS NOT NULL;
CREATE UNIQUE INDEX ix_branches_watched ON branches (repository_id) WHERE is_watched;

CREATE TABLE cards (
    id BIGSERIAL NOT NULL,
    device_id BIGINT NOT NULL,
    key TEXT NOT NULL,
    facts JSONB NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_cards PRIMARY KEY (id),
    CONSTRAINT uq_cards_device_id_key UNIQUE (device_id, key),
    CONSTRAINT fk_cards_device_id FOREIGN KEY(device_id) REFERENCES devices (id) ON DELETE CASCADE
);

CREATE TABLE change_requests (
    id BIGSERIAL NOT NULL,
    repository_id BIGINT NOT NULL,
    number BIGINT NOT NULL,
    head_sha TEXT NOT NULL,
    head_at TIMESTAMP WITH TIME ZONE,
    is_fork BOOLEAN NOT NULL,
    allowed_sha TEXT,
    allowed_by TEXT,
    answer TEXT DEFAULT '' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_change_requests PRIMARY KEY (id),
    CONSTRAINT uq_change_requests_repository_id_number UNIQUE (repository_id, number),
    CONSTRAINT fk_change_requests_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE
);

CREATE TABLE channels (
    id BIGSERIAL NOT NULL,
    repository_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    service TEXT NOT NULL,
    url TEXT NOT NULL,
    shown_url TEXT NOT NULL,
    secret TEXT,
    kinds JSONB NOT NULL,
    person TEXT,
    quiet_from BIGINT,
    quiet_until BIGINT,
    time_zone TEXT DEFAULT 'UTC' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_channels PRIMARY KEY (id),
    CONSTRAINT uq_channels_repository_id_name UNIQUE (repository_id, name),
    CONSTRAINT ck_channels_quiet_hours_whole CHECK ((quiet_from IS NULL) = (quiet_until IS NULL)),
    CONSTRAINT fk_channels_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE
);

CREATE TABLE ci_identities (
    id BIGSERIAL NOT NULL,
    repository_id BIGINT NOT NULL,
    issuer TEXT NOT NULL,
    audience TEXT NOT NULL,
    subject TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    last_used_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_ci_identities PRIMARY KEY (id),
    CONSTRAINT uq_ci_identities_repository_id_issuer_audience_subject UNIQUE (repository_id, issuer, audience, subject),
    CONSTRAINT fk_ci_identities_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE
);
CREATE INDEX ix_ci_identities_issuer ON ci_identities (issuer);

CREATE TABLE environments (
    id BIGSERIAL NOT NULL,
    device_id BIGINT NOT NULL,
    key TEXT NOT NULL,
    facts JSONB NOT NULL,
    peaks JSONB,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_environments PRIMARY KEY (id),
    CONSTRAINT fk_environments_device_id FOREIGN KEY(device_id) REFERENCES devices (id) ON DELETE CASCADE,
    CONSTRAINT uq_environments_key UNIQUE (key)
);
CREATE INDEX ix_environments_device_id ON environments (device_id);

CREATE TABLE forge_links (
    repository_id BIGINT NOT NULL,
    forge TEXT NOT NULL,
    api_url TEXT,
    project TEXT NOT NULL,
    token TEXT,
    files_issues BOOLEAN DEFAULT 'false' NOT NULL,
    issues_since TIMESTAMP WITH TIME ZONE,
    state TEXT DEFAULT 'unknown' NOT NULL,
    message TEXT DEFAULT '' NOT NULL,
    checked_at TIMESTAMP WITH TIME ZONE,
    paused_until TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_forge_links PRIMARY KEY (repository_id),
    CONSTRAINT ck_forge_links_forge_known CHECK (forge IN ('github', 'gitlab')),
    CONSTRAINT ck_forge_links_state_known CHECK (state IN ('unknown', 'linked', 'missing', 'refused', 'unreachable')),
    CONSTRAINT fk_forge_links_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE
);

CREATE TABLE operators (
    id BIGSERIAL NOT NULL,
    repository_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    summary TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_operators PRIMARY KEY (id),
    CONSTRAINT uq_operators_repository_id_name UNIQUE (repository_id, name),
    CONSTRAINT fk_operators_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE
);

CREATE TABLE patches (
    id BIGSERIAL NOT NULL,
    repository_id BIGINT NOT NULL,
    sha TEXT NOT NULL,
    base_sha TEXT NOT NULL,
    content BYTEA NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    used_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_patches PRIMARY KEY (id),
    CONSTRAINT uq_patches_repository_id_sha UNIQUE (repository_id, sha),
    CONSTRAINT fk_patches_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE
);
CREATE INDEX ix_patches_used_at ON patches (used_at);

CREATE TABLE proofs (
    id BIGSERIAL NOT NULL,
    device_id BIGINT NOT NULL,
    kind TEXT NOT NULL,
    version TEXT NOT NULL,
    content JSONB NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_proofs PRIMARY KEY (id),
    CONSTRAINT fk_proofs_device_id FOREIGN KEY(device_id) REFERENCES devices (id) ON DELETE CASCADE
);
CREATE INDEX ix_proofs_device_id_kind_id ON proofs (device_id, kind, id);

CREATE TABLE retention_rules (
    repository_id BIGINT NOT NULL,
    kind TEXT NOT NULL,
    days BIGINT NOT NULL,
    seen_id BIGINT DEFAULT '0' NOT NULL,
    run_at TIMESTAMP WITH TIME ZONE,
    deleted BIGINT DEFAULT '0' NOT NULL,
    freed_bytes BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_retention_rules PRIMARY KEY (repository_id, kind),
    CONSTRAINT ck_retention_rules_kind_known CHECK (kind IN ('samples', 'traces', 'logs', 'builds', 'mirror')),
    CONSTRAINT ck_retention_rules_days_possible CHECK (days BETWEEN 1 AND 36500),
    CONSTRAINT fk_retention_rules_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE
);

CREATE TABLE saved_views (
    id BIGSERIAL NOT NULL,
    repository_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    path TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_saved_views PRIMARY KEY (id),
    CONSTRAINT uq_saved_views_repository_id_name UNIQUE (repository_id, name),
    CONSTRAINT fk_saved_views_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE
);
CREATE INDEX ix_saved_views_repository_id_id ON saved_views (repository_id, id);

CREATE TABLE schedules (
    id BIGSERIAL NOT NULL,
    repository_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    cron TEXT NOT NULL,
    request JSONB NOT NULL,
    budget_minutes BIGINT NOT NULL,
    is_enabled BOOLEAN DEFAULT 'true' NOT NULL,
    last_at TIMESTAMP WITH TIME ZONE,
    next_at TIMESTAMP WITH TIME ZONE,
    message TEXT DEFAULT '' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_schedules PRIMARY KEY (id),
    CONSTRAINT ck_schedules_kind_known CHECK (kind IN ('suite', 'rerun', 'backfill')),
    CONSTRAINT uq_schedules_repository_id_name UNIQUE (repository_id, name),
    CONSTRAINT fk_schedules_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE
);
CREATE INDEX ix_schedules_due ON schedules (next_at) WHERE is_enabled;

CREATE TABLE workers (
    id BIGSERIAL NOT NULL,
    name TEXT NOT NULL,
    device_id BIGINT NOT NULL,
    key_id BIGINT,
    version TEXT NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    heartbeat_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    stopped_at TIMESTAMP WITH TIME ZONE,
    paused_until TIMESTAMP WITH TIME ZONE,
    pause_reason TEXT,
    facts JSONB DEFAULT '{}' NOT NULL,
    CONSTRAINT pk_workers PRIMARY KEY (id),
    CONSTRAINT ck_workers_pause_reason_known CHECK (pause_reason IN ('unchanged', 'base_failed', 'interpreter_mismatch', 'control_moved', 'control_missed', 'unfit_device', 'git_unreachable', 'disk_full', 'host_fault', 'internal_error', 'unstorable', 'worker_lost', 'missing_dependency', 'unusable_definitions', 'incomplete_commit', 'image_refused', 'image_missing')),
    CONSTRAINT uq_workers_name UNIQUE (name),
    CONSTRAINT fk_workers_device_id FOREIGN KEY(device_id) REFERENCES devices (id) ON DELETE CASCADE,
    CONSTRAINT fk_workers_key_id FOREIGN KEY(key_id) REFERENCES worker_keys (id) ON DELETE SET NULL
)
 WITH (fillfactor = 50);
CREATE INDEX ix_workers_device_id ON workers (device_id);
CREATE INDEX ix_workers_key_id ON workers (key_id);

CREATE TABLE card_offsets (
    operator_id BIGINT NOT NULL,
    card_id BIGINT NOT NULL,
    other_card_id BIGINT NOT NULL,
    logs JSONB NOT NULL,
    is_agreed BOOLEAN NOT NULL,
    CONSTRAINT pk_card_offsets PRIMARY KEY (operator_id, card_id, other_card_id),
    CONSTRAINT fk_card_offsets_operator_id FOREIGN KEY(operator_id) REFERENCES operators (id) ON DELETE CASCADE,
    CONSTRAINT fk_card_offsets_card_id FOREIGN KEY(card_id) REFERENCES cards (id) ON DELETE CASCADE,
    CONSTRAINT fk_card_offsets_other_card_id FOREIGN KEY(other_card_id) REFERENCES cards (id) ON DELETE CASCADE
);
CREATE INDEX ix_card_offsets_card_id ON card_offsets (card_id);
CREATE INDEX ix_card_offsets_other_card_id ON card_offsets (other_card_id);

CREATE TABLE cases (
    id BIGSERIAL NOT NULL,
    operator_id BIGINT NOT NULL,
    key TEXT NOT NULL,
    sizes JSONB NOT NULL,
    precision TEXT NOT NULL,
    direction TEXT NOT NULL,
    layout TEXT NOT NULL,
    suites JSONB NOT NULL,
    flops BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    CONSTRAINT pk_cases PRIMARY KEY (id),
    CONSTRAINT uq_cases_operator_id_key UNIQUE (operator_id, key),
    CONSTRAINT fk_cases_operator_id FOREIGN KEY(operator_id) REFERENCES operators (id) ON DELETE CASCADE
);

CREATE TABLE commits (
    id BIGSERIAL NOT NULL,
    repository_id BIGINT NOT NULL,
    sha TEXT NOT NULL,
    parent_sha TEXT,
    ordinal BIGINT NOT NULL,
    author TEXT NOT NULL,
    authored_at TIMESTAMP WITH TIME ZONE NOT NULL,
    subject TEXT NOT NULL,
    catalogue JSONB,
    catalogue_digest TEXT,
    counts JSONB,
    tags JSONB DEFAULT '[]' NOT NULL,
    patch_id BIGINT,
    CONSTRAINT pk_commits PRIMARY KEY (id),
    CONSTRAINT uq_commits_repository_id_sha UNIQUE (repository_id, sha),
    CONSTRAINT fk_commits_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE,
    CONSTRAINT fk_commits_patch_id FOREIGN KEY(patch_id) REFERENCES patches (id) ON DELETE CASCADE
);
CREATE INDEX ix_commits_patch_id ON commits (patch_id) WHERE patch_id IS NOT NULL;
CREATE INDEX ix_commits_releases ON commits (repository_id, ordinal) WHERE tags <> '[]';
CREATE INDEX ix_commits_repository_id_ordinal ON commits (repository_id, ordinal);
CREATE INDEX ix_commits_uncounted ON commits (id) WHERE counts IS NULL;
CREATE INDEX ix_commits_words ON commits USING gin (to_tsvector('simple', left(subject, 500) || ' ' || left(author, 100)));

CREATE TABLE trends (
    operator_id BIGINT NOT NULL,
    device_id BIGINT NOT NULL,
    metric TEXT NOT NULL,
    commit_ids JSONB NOT NULL,
    cells JSONB NOT NULL,
    CONSTRAINT pk_trends PRIMARY KEY (operator_id, device_id, metric),
    CONSTRAINT fk_trends_operator_id FOREIGN KEY(operator_id) REFERENCES operators (id) ON DELETE CASCADE,
    CONSTRAINT fk_trends_device_id FOREIGN KEY(device_id) REFERENCES devices (id) ON DELETE CASCADE
);

CREATE TABLE variants (
    id BIGSERIAL NOT NULL,
    operator_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    idea TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_variants PRIMARY KEY (id),
    CONSTRAINT uq_variants_operator_id_name UNIQUE (operator_id, name),
    CONSTRAINT fk_variants_operator_id FOREIGN KEY(operator_id) REFERENCES operators (id) ON DELETE CASCADE
);

CREATE TABLE branch_commits (
    commit_id BIGINT NOT NULL,
    branch_id BIGINT NOT NULL,
    place BIGINT NOT NULL,
    CONSTRAINT pk_branch_commits PRIMARY KEY (commit_id, branch_id),
    CONSTRAINT fk_branch_commits_commit_id FOREIGN KEY(commit_id) REFERENCES commits (id) ON DELETE CASCADE,
    CONSTRAINT fk_branch_commits_branch_id FOREIGN KEY(branch_id) REFERENCES branches (id) ON DELETE CASCADE
);
CREATE INDEX ix_branch_commits_branch_id_place ON branch_commits (branch_id, place);

CREATE TABLE builds (
    id BIGSERIAL NOT NULL,
    commit_id BIGINT NOT NULL,
    operator_id BIGINT NOT NULL,
    environment_id BIGINT NOT NULL,
    status TEXT NOT NULL,
    key TEXT NOT NULL,
    cached BOOLEAN NOT NULL,
    seconds DOUBLE PRECISION NOT NULL,
    log TEXT NOT NULL,
    resources JSONB NOT NULL,
    compile_seconds DOUBLE PRECISION,
    code_hash TEXT DEFAULT '' NOT NULL,
    built_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_builds PRIMARY KEY (id),
    CONSTRAINT uq_builds_commit_id_operator_id_environment_id UNIQUE (commit_id, operator_id, environment_id),
    CONSTRAINT fk_builds_commit_id FOREIGN KEY(commit_id) REFERENCES commits (id) ON DELETE CASCADE,
    CONSTRAINT fk_builds_operator_id FOREIGN KEY(operator_id) REFERENCES operators (id) ON DELETE CASCADE,
    CONSTRAINT fk_builds_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id) ON DELETE CASCADE
);
CREATE INDEX ix_builds_operator_id ON builds (operator_id);

CREATE TABLE series (
    id BIGSERIAL NOT NULL,
    operator_id BIGINT NOT NULL,
    case_id BIGINT NOT NULL,
    variant_id BIGINT NOT NULL,
    device_id BIGINT NOT NULL,
    protocol TEXT NOT NULL,
    metric TEXT NOT NULL,
    CONSTRAINT pk_series PRIMARY KEY (id),
    CONSTRAINT uq_series_operator_id_device_id_case_id_variant_id_metr_b525 UNIQUE (operator_id, device_id, case_id, variant_id, metric, protocol),
    CONSTRAINT fk_series_operator_id FOREIGN KEY(operator_id) REFERENCES operators (id) ON DELETE CASCADE,
    CONSTRAINT fk_series_case_id FOREIGN KEY(case_id) REFERENCES cases (id) ON DELETE CASCADE,
    CONSTRAINT fk_series_variant_id FOREIGN KEY(variant_id) REFERENCES variants (id) ON DELETE CASCADE,
    CONSTRAINT fk_series_device_id FOREIGN KEY(device_id) REFERENCES devices (id) ON DELETE CASCADE
);
CREATE INDEX ix_series_device_id_metric ON series (device_id, metric);

CREATE TABLE submissions (
    id BIGSERIAL NOT NULL,
    repository_id BIGINT NOT NULL,
    request JSONB NOT NULL,
    idempotency_key TEXT,
    priority BIGINT DEFAULT '0' NOT NULL,
    origin TEXT DEFAULT 'api' NOT NULL,
    base_commit_id BIGINT,
    schedule_id BIGINT,
    change_id BIGINT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_submissions PRIMARY KEY (id),
    CONSTRAINT fk_submissions_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE,
    CONSTRAINT uq_submissions_idempotency_key UNIQUE (idempotency_key),
    CONSTRAINT fk_submissions_base_commit_id FOREIGN KEY(base_commit_id) REFERENCES commits (id) ON DELETE SET NULL,
    CONSTRAINT fk_submissions_schedule_id FOREIGN KEY(schedule_id) REFERENCES schedules (id) ON DELETE SET NULL,
    CONSTRAINT fk_submissions_change_id FOREIGN KEY(change_id) REFERENCES change_requests (id) ON DELETE SET NULL
);
CREATE INDEX ix_submissions_base_commit_id ON submissions (base_commit_id) WHERE base_commit_id IS NOT NULL;
CREATE INDEX ix_submissions_change_id ON submissions (change_id) WHERE change_id IS NOT NULL;
CREATE INDEX ix_submissions_repository_id_id ON submissions (repository_id, id);
CREATE INDEX ix_submissions_schedule_id ON submissions (schedule_id);

CREATE TABLE watches (
    id BIGSERIAL NOT NULL,
    person TEXT NOT NULL,
    operator_id BIGINT NOT NULL,
    case_id BIGINT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_watches PRIMARY KEY (id),
    CONSTRAINT uq_watches_operator_id_person_case_id UNIQUE NULLS NOT DISTINCT (operator_id, person, case_id),
    CONSTRAINT fk_watches_operator_id FOREIGN KEY(operator_id) REFERENCES operators (id) ON DELETE CASCADE,
    CONSTRAINT fk_watches_case_id FOREIGN KEY(case_id) REFERENCES cases (id) ON DELETE CASCADE
);
CREATE INDEX ix_watches_case_id ON watches (case_id);

CREATE TABLE bundles (
    id BIGSERIAL NOT NULL,
    sha256 TEXT NOT NULL,
    name TEXT NOT NULL,
    submission_id BIGINT NOT NULL,
    imported_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_bundles PRIMARY KEY (id),
    CONSTRAINT uq_bundles_sha256 UNIQUE (sha256),
    CONSTRAINT fk_bundles_submission_id FOREIGN KEY(submission_id) REFERENCES submissions (id) ON DELETE CASCADE
);
CREATE INDEX ix_bundles_submission_id ON bundles (submission_id);

CREATE TABLE callbacks (
    id BIGSERIAL NOT NULL,
    submission_id BIGINT,
    repository_id BIGINT,
    url TEXT NOT NULL,
    body JSONB NOT NULL,
    attempts BIGINT DEFAULT '0' NOT NULL,
    next_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    message TEXT DEFAULT '' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    sent_at TIMESTAMP WITH TIME ZONE,
    given_up_at TIMESTAMP WITH TIME ZONE,
    concluded_at TIMESTAMP WITH TIME ZONE,
    claimed_until TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_callbacks PRIMARY KEY (id),
    CONSTRAINT ck_callbacks_one_subject CHECK ((submission_id IS NULL) <> (repository_id IS NULL)),
    CONSTRAINT fk_callbacks_submission_id FOREIGN KEY(submission_id) REFERENCES submissions (id) ON DELETE CASCADE,
    CONSTRAINT fk_callbacks_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE
);
CREATE INDEX ix_callbacks_claimed ON callbacks (claimed_until) WHERE claimed_until IS NOT NULL;
CREATE INDEX ix_callbacks_due ON callbacks (next_at) WHERE sent_at IS NULL AND given_up_at IS NULL;
CREATE INDEX ix_callbacks_given_up ON callbacks (given_up_at) WHERE given_up_at IS NOT NULL;
CREATE INDEX ix_callbacks_open ON callbacks (id) WHERE concluded_at IS NULL;
CREATE INDEX ix_callbacks_repository_id ON callbacks (repository_id);
CREATE INDEX ix_callbacks_submission_id ON callbacks (submission_id);
CREATE INDEX ix_callbacks_url ON callbacks (url);

CREATE TABLE deletions (
    id BIGSERIAL NOT NULL,
    repository_id BIGINT NOT NULL,
    submission_id BIGINT,
    commit_ids JSONB DEFAULT '[]' NOT NULL,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_deletions PRIMARY KEY (id),
    CONSTRAINT uq_deletions_submission_id UNIQUE (submission_id),
    CONSTRAINT fk_deletions_repository_id FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE,
    CONSTRAINT fk_deletions_submission_id FOREIGN KEY(submission_id) REFERENCES submissions (id) ON DELETE CASCADE
);
CREATE INDEX ix_deletions_repository_id ON deletions (repository_id);

CREATE TABLE jobs (
    id BIGSERIAL NOT NULL,
    submission_id BIGINT NOT NULL,
    kind TEXT NOT NULL,
    commit_id BIGINT NOT NULL,
    base_commit_id BIGINT,
    operator_id BIGINT NOT NULL,
    device_id BIGINT NOT NULL,
    spec JSONB NOT NULL,
    priority BIGINT DEFAULT '0' NOT NULL,
    state TEXT DEFAULT 'queued' NOT NULL,
    attempt BIGINT DEFAULT '0' NOT NULL,
    max_attempts BIGINT DEFAULT '3' NOT NULL,
    outages BIGINT DEFAULT '0' NOT NULL,
    not_before TIMESTAMP WITH TIME ZONE,
    message TEXT DEFAULT '' NOT NULL,
    reason TEXT,
    definitions_sha TEXT,
    unchanged_since_commit_id BIGINT,
    progress JSONB,
    trace_parent TEXT,
    judged_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_jobs PRIMARY KEY (id),
    CONSTRAINT ck_jobs_kind_known CHECK (kind IN ('check', 'bench', 'profile', 'compare')),
    CONSTRAINT ck_jobs_state_known CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
    CONSTRAINT ck_jobs_reason_known CHECK (reason IN ('unchanged', 'base_failed', 'interpreter_mismatch', 'control_moved', 'control_missed', 'unfit_device', 'git_unreachable', 'disk_full', 'host_fault', 'internal_error', 'unstorable', 'worker_lost', 'missing_dependency', 'unusable_definitions', 'incomplete_commit', 'image_refused', 'image_missing')),
    CONSTRAINT fk_jobs_submission_id FOREIGN KEY(submission_id) REFERENCES submissions (id) ON DELETE CASCADE,
    CONSTRAINT fk_jobs_commit_id FOREIGN KEY(commit_id) REFERENCES commits (id) ON DELETE CASCADE,
    CONSTRAINT fk_jobs_base_commit_id FOREIGN KEY(base_commit_id) REFERENCES commits (id) ON DELETE CASCADE,
    CONSTRAINT fk_jobs_operator_id FOREIGN KEY(operator_id) REFERENCES operators (id) ON DELETE CASCADE,
    CONSTRAINT fk_jobs_device_id FOREIGN KEY(device_id) REFERENCES devices (id) ON DELETE CASCADE,
    CONSTRAINT fk_jobs_unchanged_since_commit_id FOREIGN KEY(unchanged_since_commit_id) REFERENCES commits (id) ON DELETE SET NULL
);
CREATE INDEX ix_jobs_base_commit_id ON jobs (base_commit_id) WHERE base_commit_id IS NOT NULL;
CREATE INDEX ix_jobs_commit_id_operator_id ON jobs (commit_id, operator_id);
CREATE INDEX ix_jobs_open ON jobs (device_id, priority, id) WHERE state IN ('queued', 'running');
CREATE INDEX ix_jobs_operator_id_id ON jobs (operator_id, id);
CREATE INDEX ix_jobs_state_id ON jobs (state, id);
CREATE INDEX ix_jobs_submission_id_id ON jobs (submission_id, id);
CREATE INDEX ix_jobs_unchanged_since_commit_id ON jobs (unchanged_since_commit_id) WHERE unchanged_since_commit_id IS NOT NULL;
CREATE INDEX ix_jobs_unjudged ON jobs (id) WHERE state IN ('done', 'failed', 'cancelled') AND judged_at IS NULL;

CREATE TABLE muted_series (
    series_id BIGINT NOT NULL,
    until DATE NOT NULL,
    author TEXT NOT NULL,
    reason TEXT DEFAULT '' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_muted_series PRIMARY KEY (series_id),
    CONSTRAINT fk_muted_series_series_id FOREIGN KEY(series_id) REFERENCES series (id) ON DELETE CASCADE
);
CREATE INDEX ix_muted_series_until ON muted_series (until);

CREATE TABLE job_sources (
    job_id BIGINT NOT NULL,
    operator_id BIGINT NOT NULL,
    commit_id BIGINT NOT NULL,
    environment_id BIGINT NOT NULL,
    sources TEXT,
    shifts JSONB DEFAULT '[]' NOT NULL,
    card_id BIGINT,
    drifts JSONB DEFAULT '[]' NOT NULL,
    drifts_since TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_job_sources PRIMARY KEY (job_id),
    CONSTRAINT fk_job_sources_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT fk_job_sources_operator_id FOREIGN KEY(operator_id) REFERENCES operators (id) ON DELETE CASCADE,
    CONSTRAINT fk_job_sources_commit_id FOREIGN KEY(commit_id) REFERENCES commits (id) ON DELETE CASCADE,
    CONSTRAINT fk_job_sources_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id) ON DELETE CASCADE,
    CONSTRAINT fk_job_sources_card_id FOREIGN KEY(card_id) REFERENCES cards (id) ON DELETE SET NULL
);
CREATE INDEX ix_job_sources_card_id ON job_sources (card_id);
CREATE INDEX ix_job_sources_commit_id_environment_id ON job_sources (commit_id, environment_id);
CREATE INDEX ix_job_sources_environment_id ON job_sources (environment_id);
CREATE INDEX ix_job_sources_operator_id_commit_id ON job_sources (operator_id, commit_id);

CREATE TABLE partial_outcomes (
    job_id BIGINT NOT NULL,
    environment_key TEXT NOT NULL,
    findings JSONB NOT NULL,
    comparisons JSONB DEFAULT '[]' NOT NULL,
    CONSTRAINT pk_partial_outcomes PRIMARY KEY (job_id),
    CONSTRAINT fk_partial_outcomes_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE TABLE patch_outcomes (
    job_id BIGINT NOT NULL,
    outcome JSONB NOT NULL,
    CONSTRAINT pk_patch_outcomes PRIMARY KEY (job_id),
    CONSTRAINT fk_patch_outcomes_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE TABLE runs (
    id BIGSERIAL NOT NULL,
    job_id BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    worker_id BIGINT,
    environment_id BIGINT,
    card_id BIGINT,
    card_facts JSONB,
    state TEXT DEFAULT 'running' NOT NULL,
    message TEXT DEFAULT '' NOT NULL,
    reason TEXT,
    struck_out_at TIMESTAMP WITH TIME ZONE,
    struck_out_reason TEXT,
    statuses JSONB,
    times JSONB,
    yielded_to_job_id BIGINT,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    heartbeat_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_runs PRIMARY KEY (id),
    CONSTRAINT ck_runs_state_known CHECK (state IN ('running', 'done', 'failed', 'lost', 'cancelled', 'yielded')),
    CONSTRAINT ck_runs_reason_known CHECK (reason IN ('unchanged', 'base_failed', 'interpreter_mismatch', 'control_moved', 'control_missed', 'unfit_device', 'git_unreachable', 'disk_full', 'host_fault', 'internal_error', 'unstorable', 'worker_lost', 'missing_dependency', 'unusable_definitions', 'incomplete_commit', 'image_refused', 'image_missing')),
    CONSTRAINT uq_runs_job_id_attempt UNIQUE (job_id, attempt),
    CONSTRAINT fk_runs_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT fk_runs_worker_id FOREIGN KEY(worker_id) REFERENCES workers (id) ON DELETE SET NULL,
    CONSTRAINT fk_runs_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id) ON DELETE SET NULL,
    CONSTRAINT fk_runs_card_id FOREIGN KEY(card_id) REFERENCES cards (id) ON DELETE SET NULL
)
 WITH (fillfactor = 70);
CREATE INDEX ix_runs_card_id ON runs (card_id);
CREATE INDEX ix_runs_environment_id ON runs (environment_id);
CREATE INDEX ix_runs_finished_at ON runs (finished_at);
CREATE INDEX ix_runs_running ON runs (id) WHERE state = 'running';
CREATE INDEX ix_runs_uncounted ON runs (id) WHERE state = 'done' AND statuses IS NULL;
CREATE INDEX ix_runs_worker_id ON runs (worker_id);

CREATE TABLE all_comparisons (
    id BIGSERIAL NOT NULL,
    run_id BIGINT NOT NULL,
    series_id BIGINT NOT NULL,
    base_commit_id BIGINT NOT NULL,
    head_commit_id BIGINT NOT NULL,
    status TEXT NOT NULL,
    message TEXT DEFAULT '' NOT NULL,
    reason TEXT,
    base_ns JSONB NOT NULL,
    head_ns JSONB NOT NULL,
    controls JSONB,
    is_struck_out BOOLEAN DEFAULT 'false' NOT NULL,
    CONSTRAINT pk_all_comparisons PRIMARY KEY (id),
    CONSTRAINT ck_all_comparisons_reason_known CHECK (reason IN ('unchanged', 'base_failed', 'interpreter_mismatch', 'control_moved', 'control_missed', 'unfit_device', 'git_unreachable', 'disk_full', 'host_fault', 'internal_error', 'unstorable', 'worker_lost', 'missing_dependency', 'unusable_definitions', 'incomplete_commit', 'image_refused', 'image_missing')),
    CONSTRAINT uq_all_comparisons_run_id_series_id UNIQUE (run_id, series_id),
    CONSTRAINT fk_all_comparisons_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT fk_all_comparisons_series_id FOREIGN KEY(series_id) REFERENCES series (id) ON DELETE CASCADE,
    CONSTRAINT fk_all_comparisons_base_commit_id FOREIGN KEY(base_commit_id) REFERENCES commits (id) ON DELETE CASCADE,
    CONSTRAINT fk_all_comparisons_head_commit_id FOREIGN KEY(head_commit_id) REFERENCES commits (id) ON DELETE CASCADE
);
CREATE INDEX ix_all_comparisons_base_commit_id ON all_comparisons (base_commit_id);
CREATE INDEX ix_all_comparisons_head_commit_id ON all_comparisons (head_commit_id);
CREATE INDEX ix_all_comparisons_series_id ON all_comparisons (series_id);

CREATE TABLE all_results (
    id BIGSERIAL NOT NULL,
    run_id BIGINT NOT NULL,
    kind TEXT NOT NULL,
    commit_id BIGINT NOT NULL,
    ordinal BIGINT NOT NULL,
    operator_id BIGINT NOT NULL,
    variant_id BIGINT NOT NULL,
    case_id BIGINT NOT NULL,
    device_id BIGINT NOT NULL,
    environment_id BIGINT NOT NULL,
    status TEXT NOT NULL,
    message TEXT DEFAULT '' NOT NULL,
    details JSONB DEFAULT '{}' NOT NULL,
    is_struck_out BOOLEAN DEFAULT 'false' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_all_results PRIMARY KEY (id),
    CONSTRAINT ck_all_results_status_known CHECK (status IN ('ok', 'wrong', 'crashed', 'timed_out', 'out_of_memory', 'build_failed', 'unreadable', 'missing_dependency', 'unsupported', 'skipped')),
    CONSTRAINT uq_all_results_run_id_commit_id_variant_id_case_id UNIQUE (run_id, commit_id, variant_id, case_id),
    CONSTRAINT fk_all_results_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT fk_all_results_commit_id FOREIGN KEY(commit_id) REFERENCES commits (id) ON DELETE CASCADE,
    CONSTRAINT fk_all_results_operator_id FOREIGN KEY(operator_id) REFERENCES operators (id) ON DELETE CASCADE,
    CONSTRAINT fk_all_results_variant_id FOREIGN KEY(variant_id) REFERENCES variants (id) ON DELETE CASCADE,
    CONSTRAINT fk_all_results_case_id FOREIGN KEY(case_id) REFERENCES cases (id) ON DELETE CASCADE,
    CONSTRAINT fk_all_results_device_id FOREIGN KEY(device_id) REFERENCES devices (id) ON DELETE CASCADE,
    CONSTRAINT fk_all_results_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id) ON DELETE CASCADE
);
CREATE INDEX ix_all_results_case_id ON all_results (case_id);
CREATE INDEX ix_all_results_commit_id_operator_id_kind_device_id ON all_results (commit_id, operator_id, kind, device_id);
CREATE INDEX ix_all_results_operator_id_device_id_kind_ordinal ON all_results (operator_id, device_id, kind, ordinal);
CREATE INDEX ix_all_results_variant_id_case_id_device_id_kind_ordinal_id ON all_results (variant_id, case_id, device_id, kind, ordinal, id);

CREATE TABLE result_chunks (
    run_id BIGINT NOT NULL,
    start BIGINT NOT NULL,
    data BYTEA NOT NULL,
    CONSTRAINT pk_result_chunks PRIMARY KEY (run_id, start),
    CONSTRAINT fk_result_chunks_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

CREATE TABLE run_logs (
    id BIGSERIAL NOT NULL,
    run_id BIGINT NOT NULL,
    text TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_run_logs PRIMARY KEY (id),
    CONSTRAINT fk_run_logs_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE INDEX ix_run_logs_run_id_id ON run_logs (run_id, id);

CREATE TABLE all_points (
    id BIGSERIAL NOT NULL,
    series_id BIGINT NOT NULL,
    commit_id BIGINT NOT NULL,
    ordinal BIGINT NOT NULL,
    environment_id BIGINT NOT NULL,
    result_id BIGINT NOT NULL,
    median_ns DOUBLE PRECISION NOT NULL,
    low_ns DOUBLE PRECISION NOT NULL,
    high_ns DOUBLE PRECISION NOT NULL,
    noise DOUBLE PRECISION NOT NULL,
    count BIGINT NOT NULL,
    dropped BIGINT DEFAULT '0' NOT NULL,
    roofline_share DOUBLE PRECISION,
    bound TEXT,
    is_struck_out BOOLEAN DEFAULT 'false' NOT NULL,
    measured_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    card_id BIGINT,
    CONSTRAINT pk_all_points PRIMARY KEY (id),
    CONSTRAINT uq_all_points_series_id_result_id UNIQUE (series_id, result_id),
    CONSTRAINT ck_all_points_times_possible CHECK (low_ns >= 0.001 AND low_ns <= median_ns AND median_ns <= high_ns AND high_ns <= 86400000000000.0),
    CONSTRAINT fk_all_points_series_id FOREIGN KEY(series_id) REFERENCES series (id) ON DELETE CASCADE,
    CONSTRAINT fk_all_points_commit_id FOREIGN KEY(commit_id) REFERENCES commits (id) ON DELETE CASCADE,
    CONSTRAINT fk_all_points_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id) ON DELETE CASCADE,
    CONSTRAINT fk_all_points_result_id FOREIGN KEY(result_id) REFERENCES all_results (id) ON DELETE CASCADE,
    CONSTRAINT fk_all_points_card_id FOREIGN KEY(card_id) REFERENCES cards (id) ON DELETE SET NULL
);
CREATE INDEX ix_all_points_commit_id ON all_points (commit_id);
CREATE INDEX ix_all_points_result_id ON all_points (result_id);
CREATE INDEX ix_all_points_series_id_ordinal_id ON all_points (series_id, ordinal, id);

CREATE TABLE traces (
    id BIGSERIAL NOT NULL,
    result_id BIGINT NOT NULL,
    size BIGINT NOT NULL,
    compressed_size BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    runtime_calls JSONB DEFAULT '{}' NOT NULL,
    summary JSONB DEFAULT '{}' NOT NULL,
    report BYTEA,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_traces PRIMARY KEY (id),
    CONSTRAINT fk_traces_result_id FOREIGN KEY(result_id) REFERENCES all_results (id) ON DELETE CASCADE
);
CREATE INDEX ix_traces_result_id ON traces (result_id);

CREATE TABLE regressions (
    id BIGSERIAL NOT NULL,
    operator_id BIGINT NOT NULL,
    device_id BIGINT NOT NULL,
    base_commit_id BIGINT NOT NULL,
    head_commit_id BIGINT NOT NULL,
    direction TEXT NOT NULL,
    cause TEXT DEFAULT 'history' NOT NULL,
    verdict TEXT DEFAULT 'suspected' NOT NULL,
    state TEXT DEFAULT 'new' NOT NULL,
    ratio DOUBLE PRECISION,
    low DOUBLE PRECISION,
    high DOUBLE PRECISION,
    compare_job_id BIGINT,
    base_trace_id BIGINT,
    head_trace_id BIGINT,
    assignee TEXT,
    link TEXT,
    due_on DATE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    decided_at TIMESTAMP WITH TIME ZONE,
    settled_at TIMESTAMP WITH TIME ZONE,
    triaged_at TIMESTAMP WITH TIME ZONE,
    fixed_by_commit_id BIGINT,
    merged_as_id BIGINT,
    merge_cause TEXT,
    merged_base_commit_id BIGINT,
    merged_head_commit_id BIGINT,
    merged_commits BIGINT,
    CONSTRAINT pk_regressions PRIMARY KEY (id),
    CONSTRAINT ck_regressions_verdict_known CHECK (verdict IN ('suspected', 'confirmed', 'dismissed', 'unsure')),
    CONSTRAINT ck_regressions_state_known CHECK (state IN ('new', 'acknowledged', 'accepted', 'fixed', 'reverted', 'invalid')),
    CONSTRAINT ck_regressions_direction_known CHECK (direction IN ('slower', 'faster', 'broken')),
    CONSTRAINT ck_regressions_cause_known CHECK (cause IN ('history', 'code', 'status')),
    CONSTRAINT ck_regressions_merge_cause_known CHECK (merge_cause IN ('branch', 'merge', 'unknown')),
    CONSTRAINT uq_regressions_operator_id_device_id_base_commit_id_hea_d7af UNIQUE (operator_id, device_id, base_commit_id, head_commit_id, direction),
    CONSTRAINT fk_regressions_operator_id FOREIGN KEY(operator_id) REFERENCES operators (id) ON DELETE CASCADE,
    CONSTRAINT fk_regressions_device_id FOREIGN KEY(device_id) REFERENCES devices (id) ON DELETE CASCADE,
    CONSTRAINT fk_regressions_base_commit_id FOREIGN KEY(base_commit_id) REFERENCES commits (id) ON DELETE CASCADE,
    CONSTRAINT fk_regressions_head_commit_id FOREIGN KEY(head_commit_id) REFERENCES commits (id) ON DELETE CASCADE,
    CONSTRAINT fk_regressions_compare_job_id FOREIGN KEY(compare_job_id) REFERENCES jobs (id) ON DELETE SET NULL,
    CONSTRAINT fk_regressions_base_trace_id FOREIGN KEY(base_trace_id) REFERENCES traces (id) ON DELETE SET NULL,
    CONSTRAINT fk_regressions_head_trace_id FOREIGN KEY(head_trace_id) REFERENCES traces (id) ON DELETE SET NULL,
    CONSTRAINT fk_regressions_fixed_by_commit_id FOREIGN KEY(fixed_by_commit_id) REFERENCES commits (id) ON DELETE SET NULL,
    CONSTRAINT fk_regressions_merged_as_id FOREIGN KEY(merged_as_id) REFERENCES regressions (id) ON DELETE SET NULL,
    CONSTRAINT fk_regressions_merged_base_commit_id FOREIGN KEY(merged_base_commit_id) REFERENCES commits (id) ON DELETE SET NULL,
    CONSTRAINT fk_regressions_merged_head_commit_id FOREIGN KEY(merged_head_commit_id) REFERENCES commits (id) ON DELETE SET NULL
);
CREATE INDEX ix_regressions_base_commit_id ON regressions (base_commit_id);
CREATE INDEX ix_regressions_base_trace_id ON regressions (base_trace_id) WHERE base_trace_id IS NOT NULL;
CREATE INDEX ix_regressions_compare_job_id ON regressions (compare_job_id);
CREATE INDEX ix_regressions_decided ON regressions (decided_at) WHERE verdict = 'confirmed';
CREATE INDEX ix_regressions_fixed_by_commit_id ON regressions (fixed_by_commit_id);
CREATE INDEX ix_regressions_head_commit_id ON regressions (head_commit_id);
CREATE INDEX ix_regressions_head_trace_id ON regressions (head_trace_id) WHERE head_trace_id IS NOT NULL;
CREATE INDEX ix_regressions_merged_as_id ON regressions (merged_as_id);
CREATE INDEX ix_regressions_merged_base_commit_id ON regressions (merged_base_commit_id) WHERE merged_base_commit_id IS NOT NULL;
CREATE INDEX ix_regressions_merged_head_commit_id ON regressions (merged_head_commit_id) WHERE merged_head_commit_id IS NOT NULL;
CREATE INDEX ix_regressions_operator_id_id ON regressions (operator_id, id);
CREATE INDEX ix_regressions_settled ON regressions (settled_at) WHERE verdict = 'confirmed';
CREATE INDEX ix_regressions_unsettled ON regressions (id) WHERE settled_at IS NULL;
CREATE INDEX ix_regressions_verdict_state_id ON regressions (verdict, state, id);

CREATE TABLE samples (
    point_id BIGINT NOT NULL,
    data BYTEA NOT NULL,
    CONSTRAINT pk_samples PRIMARY KEY (point_id),
    CONSTRAINT fk_samples_point_id FOREIGN KEY(point_id) REFERENCES all_points (id) ON DELETE CASCADE
);

CREATE TABLE trace_chunks (
    trace_id BIGINT NOT NULL,
    index BIGINT NOT NULL,
    data BYTEA NOT NULL,
    CONSTRAINT pk_trace_chunks PRIMARY KEY (trace_id, index),
    CONSTRAINT fk_trace_chunks_trace_id FOREIGN KEY(trace_id) REFERENCES traces (id) ON DELETE CASCADE
);

CREATE TABLE trace_kernels (
    id BIGSERIAL NOT NULL,
    trace_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    calls BIGINT NOT NULL,
    total_ns DOUBLE PRECISION NOT NULL,
    mean_ns DOUBLE PRECISION NOT NULL,
    share DOUBLE PRECISION NOT NULL,
    details JSONB DEFAULT '{}' NOT NULL,
    CONSTRAINT pk_trace_kernels PRIMARY KEY (id),
    CONSTRAINT fk_trace_kernels_trace_id FOREIGN KEY(trace_id) REFERENCES traces (id) ON DELETE CASCADE
);
CREATE INDEX ix_trace_kernels_trace_id_total_ns ON trace_kernels (trace_id, total_ns);

CREATE TABLE deliveries (
    id BIGSERIAL NOT NULL,
    channel_id BIGINT NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    regression_id BIGINT,
    covered_by_id BIGINT,
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    link TEXT NOT NULL,
    fields JSONB DEFAULT '{}' NOT NULL,
    attempts BIGINT DEFAULT '0' NOT NULL,
    next_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    claimed_until TIMESTAMP WITH TIME ZONE,
    message TEXT DEFAULT '' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    sent_at TIMESTAMP WITH TIME ZONE,
    given_up_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_deliveries PRIMARY KEY (id),
    CONSTRAINT ck_deliveries_kind_known CHECK (kind IN ('confirmed', 'broken', 'settled', 'fixed', 'alarm', 'digest', 'test')),
    CONSTRAINT uq_deliveries_channel_id_key UNIQUE (channel_id, key),
    CONSTRAINT fk_deliveries_channel_id FOREIGN KEY(channel_id) REFERENCES channels (id) ON DELETE CASCADE,
    CONSTRAINT fk_deliveries_regression_id FOREIGN KEY(regression_id) REFERENCES regressions (id) ON DELETE CASCADE,
    CONSTRAINT fk_deliveries_covered_by_id FOREIGN KEY(covered_by_id) REFERENCES deliveries (id) ON DELETE CASCADE
);
CREATE INDEX ix_deliveries_channel_id_id ON deliveries (channel_id, id);
CREATE INDEX ix_deliveries_covered_by_id ON deliveries (covered_by_id);
CREATE INDEX ix_deliveries_due ON deliveries (next_at) WHERE sent_at IS NULL AND given_up_at IS NULL AND covered_by_id IS NULL;
CREATE INDEX ix_deliveries_given_up ON deliveries (given_up_at) WHERE given_up_at IS NOT NULL;
CREATE INDEX ix_deliveries_regression_id ON deliveries (regression_id);

CREATE TABLE forge_messages (
    id BIGSERIAL NOT NULL,
    repository_id BIGINT NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    state TEXT DEFAULT '' NOT NULL,
    fields JSONB DEFAULT '{}' NOT NULL,
    submission_id BIGINT,
    change_id BIGINT,
    regression_id BIGINT,
    remote_id TEXT,
    attempts BIGINT DEFAULT '0' NOT NULL,
    next_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    claimed_until TIMESTAMP WITH TIME ZONE,
    message TEXT DEFAULT '' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    sent_at TIMESTAMP WITH TIME ZONE,
    given_up_at TIMESTAMP WITH TIME ZONE,
    concluded_at TIMESTAMP WITH TIME ZONE DEFAULT now(),
    CONSTRAINT pk_forge_messages PRIMARY KEY (id),
    CONSTRAINT ck_forge_messages_kind_known CHECK (kind IN ('link', 'check_run', 'comment', 'command', 'reaction', 'issue')),
    CONSTRAINT fk_forge_messages_repository_id FOREIGN KEY(repository_id) REFERENCES forge_links (repository_id) ON DELETE CASCADE,
    CONSTRAINT fk_forge_messages_submission_id FOREIGN KEY(submission_id) REFERENCES submissions (id) ON DELETE CASCADE,
    CONSTRAINT fk_forge_messages_change_id FOREIGN KEY(change_id) REFERENCES change_requests (id) ON DELETE CASCADE,
    CONSTRAINT fk_forge_messages_regression_id FOREIGN KEY(regression_id) REFERENCES regressions (id) ON DELETE CASCADE
);
CREATE INDEX ix_forge_messages_change_id ON forge_messages (change_id) WHERE change_id IS NOT NULL;
CREATE INDEX ix_forge_messages_claimed ON forge_messages (claimed_until) WHERE claimed_until IS NOT NULL;
CREATE INDEX ix_forge_messages_due ON forge_messages (next_at) WHERE sent_at IS NULL AND given_up_at IS NULL;
CREATE INDEX ix_forge_messages_given_up ON forge_messages (given_up_at) WHERE given_up_at IS NOT NULL;
CREATE INDEX ix_forge_messages_open ON forge_messages (id) WHERE concluded_at IS NULL;
CREATE INDEX ix_forge_messages_regression_id ON forge_messages (regression_id) WHERE regression_id IS NOT NULL;
CREATE INDEX ix_forge_messages_repository_id_id ON forge_messages (repository_id, id);
CREATE INDEX ix_forge_messages_repository_id_subject_id ON forge_messages (repository_id, subject, id);
CREATE INDEX ix_forge_messages_submission_id ON forge_messages (submission_id) WHERE submission_id IS NOT NULL;

CREATE TABLE regression_notes (
    id BIGSERIAL NOT NULL,
    regression_id BIGINT NOT NULL,
    author TEXT NOT NULL,
    state TEXT NOT NULL,
    note TEXT NOT NULL,
    changes JSONB DEFAULT '{}' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_regression_notes PRIMARY KEY (id),
    CONSTRAINT fk_regression_notes_regression_id FOREIGN KEY(regression_id) REFERENCES regressions (id) ON DELETE CASCADE
);
CREATE INDEX ix_regression_notes_fixed ON regression_notes (created_at) WHERE state = 'fixed';
CREATE INDEX ix_regression_notes_regression_id_id ON regression_notes (regression_id, id);

CREATE TABLE regression_series (
    regression_id BIGINT NOT NULL,
    series_id BIGINT NOT NULL,
    suspected_ratio DOUBLE PRECISION,
    base_status TEXT,
    head_status TEXT,
    verdict TEXT DEFAULT 'suspected' NOT NULL,
    ratio DOUBLE PRECISION,
    low DOUBLE PRECISION,
    high DOUBLE PRECISION,
    CONSTRAINT pk_regression_series PRIMARY KEY (regression_id, series_id),
    CONSTRAINT fk_regression_series_regression_id FOREIGN KEY(regression_id) REFERENCES regressions (id) ON DELETE CASCADE,
    CONSTRAINT fk_regression_series_series_id FOREIGN KEY(series_id) REFERENCES series (id) ON DELETE CASCADE
);
CREATE INDEX ix_regression_series_series_id ON regression_series (series_id);

CREATE TABLE trials (
    id BIGSERIAL NOT NULL,
    regression_id BIGINT NOT NULL,
    job_id BIGINT NOT NULL,
    purpose TEXT NOT NULL,
    base_commit_id BIGINT NOT NULL,
    head_commit_id BIGINT NOT NULL,
    merge_commit_id BIGINT,
    answer TEXT DEFAULT 'pending' NOT NULL,
    ratio DOUBLE PRECISION,
    low DOUBLE PRECISION,
    high DOUBLE PRECISION,
    message TEXT DEFAULT '' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    answered_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_trials PRIMARY KEY (id),
    CONSTRAINT ck_trials_purpose_known CHECK (purpose IN ('confirm', 'retry', 'bisect', 'prove')),
    CONSTRAINT ck_trials_answer_known CHECK (answer IN ('pending', 'changed', 'same', 'unsure', 'skipped')),
    CONSTRAINT fk_trials_regression_id FOREIGN KEY(regression_id) REFERENCES regressions (id) ON DELETE CASCADE,
    CONSTRAINT uq_trials_job_id UNIQUE (job_id),
    CONSTRAINT fk_trials_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT fk_trials_base_commit_id FOREIGN KEY(base_commit_id) REFERENCES commits (id) ON DELETE CASCADE,
    CONSTRAINT fk_trials_head_commit_id FOREIGN KEY(head_commit_id) REFERENCES commits (id) ON DELETE CASCADE,
    CONSTRAINT fk_trials_merge_commit_id FOREIGN KEY(merge_commit_id) REFERENCES commits (id) ON DELETE SET NULL
);
CREATE INDEX ix_trials_base_commit_id ON trials (base_commit_id);
CREATE INDEX ix_trials_head_commit_id ON trials (head_commit_id);
CREATE INDEX ix_trials_merge_commit_id ON trials (merge_commit_id) WHERE merge_commit_id IS NOT NULL;
CREATE INDEX ix_trials_regression_id_id ON trials (regression_id, id);
-- Results files are compressed already.
ALTER TABLE result_chunks ALTER COLUMN data SET STORAGE EXTERNAL;

-- What a person struck out counts nowhere but on its job's page.
CREATE VIEW results AS SELECT * FROM all_results WHERE NOT is_struck_out;
CREATE VIEW points AS SELECT * FROM all_points WHERE NOT is_struck_out;
CREATE VIEW comparisons AS SELECT * FROM all_comparisons WHERE NOT is_struck_out;
