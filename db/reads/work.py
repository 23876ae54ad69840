"""Reads submissions, jobs, runs and their logs."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.activities import RunTimes
from warpwatch.contract.codec import from_json
from warpwatch.contract.environment import Card
from warpwatch.contract.spec import DefinitionsVersion, JobSpec
from warpwatch.contract.words import NO_FAILURE, JobOutcome, Status
from warpwatch.db.reads.code import definitions_version, find_operator_ids
from warpwatch.db.reads.decisions import JobDecision, read_decision
from warpwatch.db.reads.query import IS_UNCHANGED, PRIMARY_METRIC, Page, fetch, fetch_one, fetch_page, fetch_scalar


@dataclass(frozen=True, slots=True)
class JobStatusRow:
    """Status of a job, for pages that follow a running job. run_id: of the newest attempt, None before the first."""

    job_id: int
    state: str
    attempt: int
    message: str
    progress: dict[str, Any] | None
    position: int | None
    run_id: int | None


@dataclass(frozen=True, slots=True)
class MeasuredSeries:
    """One metric of one result. distribution: see PointRow."""

    point_id: int
    series_id: int
    metric: str
    median_ns: float
    low_ns: float
    high_ns: float
    noise: float
    count: int
    dropped: int
    roofline_share: float | None
    bound: str | None
    distribution: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SubmissionRow:
    """state: queued | running | done | failed | cancelled, drawn from its jobs. counts: jobs per state."""

    id: int
    repository: str
    origin: str
    request: dict[str, Any]
    state: str
    counts: dict[str, int]
    results: dict[str, int]
    """Results per status, over all its runs that count."""
    outcomes: dict[str, int]
    """Jobs per contract.words.JobOutcome, and those that have not ended per state."""
    created_at: datetime
    finished_at: datetime | None
    trial: dict[str, Any] | None = None
    """For what Warpwatch itself submitted: regression, purpose (contract.words.Purpose), operator, base_sha and
    head_sha."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """position: how many jobs of its device come before it; None unless queued.

    reason: contract.words.Reason, None where none applies. unchanged_since: the commit whose results are this job's
    too, where the reason is `unchanged`. outcome: contract.words.JobOutcome, None until it has ended.
    """

    id: int
    submission_id: int
    kind: str
    commit_sha: str
    commit_subject: str
    base_sha: str | None
    repository: str
    operator: str
    device_key: str
    state: str
    outcome: str | None
    attempt: int
    priority: int
    message: str
    reason: str | None
    unchanged_since: str | None
    progress: dict[str, Any] | None
    position: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunRow:
    """struck_out_reason: why a person struck its results out; None while they count."""

    id: int
    attempt: int
    worker: str | None
    state: str
    message: str
    reason: str | None
    struck_out_reason: str | None
    started_at: datetime
    finished_at: datetime | None
    times: RunTimes | None
    """Seconds of the run by activity; None while the run goes on, and where nobody measured them."""
    rest_seconds: float | None
    """Seconds of the run besides `times`."""
    yielded_to_job_id: int | None
    """The more urgent job that it made room for, where its state is `yielded`."""
    card: Card | None = None
    """The physical card that it was measured on, as it was then; None where that is not known."""


@dataclass(frozen=True, slots=True)
class ResultView:
    id: int
    commit_sha: str
    variant: str
    case: str
    kind: str
    status: str
    message: str
    details: dict[str, Any]
    median_ns: float | None
    trace_id: int | None
    measured: list[MeasuredSeries] = field(default_factory=list)
    """Every metric of a bench, in the order they were taken."""
    replay: str = ""
    """A command that does it again in a checkout, without a server; empty for what a comparison found."""


@dataclass(frozen=True, slots=True)
class JobDetail:
    """struck_out_reason: why a person struck out the results below, which then count nowhere; None while they count.
    definitions: what defines the operator, where no commit does.
    """

    job: JobRow
    repository: str
    spec: dict[str, Any]
    """As the API shows it: contract.spec.JobSpec.to_stored."""
    runs: list[RunRow]
    results: list[ResultView]
    replay: str
    device_kind: str
    decision: JobDecision
    """Series that the job compared, and the regression that the job decided."""
    struck_out_reason: str | None = None
    definitions: DefinitionsVersion | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    id: int
    text: str
    created_at: datetime


TRIAL_ORIGIN = "confirm"
"""The origin of submissions that the judge makes (db.trials.ask)."""
_OWN_ORIGINS = f"('{TRIAL_ORIGIN}', 'judge')"
"""SQL: the origins of trials, and of readings that the judge has repeated before it asks for one."""

_FAILED = ", ".join(f"'{status}'" for status in Status if status not in (*NO_FAILURE, Status.WRONG))
_COUNTED = "SELECT jsonb_object_agg(status, number) FROM (SELECT status, count(*) AS number FROM"
# Of a comparison its pairs count and not their traces. What a working tree gave is stored apart.
_FOUND = f"""
LEFT JOIN LATERAL (
    SELECT id, statuses FROM runs WHERE job_id = jobs.id AND state = 'done' ORDER BY id DESC LIMIT 1
) AS run ON true
LEFT JOIN LATERAL (
    SELECT coalesce(
        CASE WHEN jobs.kind = 'compare' THEN ({_COUNTED} comparisons WHERE run_id = run.id GROUP BY status) AS pairs)
             ELSE coalesce(run.statuses, ({_COUNTED} results WHERE run_id = run.id GROUP BY status) AS fresh)) END,
        ({_COUNTED} (
            SELECT found ->> 'status' AS status
            FROM patch_outcomes CROSS JOIN LATERAL jsonb_array_elements(
                outcome -> CASE jobs.kind WHEN 'compare' THEN 'comparisons' ELSE 'findings' END) AS found
            WHERE patch_outcomes.job_id = jobs.id
        ) AS rows GROUP BY status) AS patched), '{{}}') AS statuses
) AS found ON true
"""
_OUTCOME = f"""
CASE WHEN jobs.state IN ('queued', 'running') THEN NULL
     WHEN jobs.state = 'failed' THEN '{JobOutcome.COULD_NOT_RUN}'
     WHEN jobs.state = 'cancelled' OR {IS_UNCHANGED} THEN '{JobOutcome.NOT_RUN}'
     WHEN found.statuses ? 'wrong' THEN '{JobOutcome.FINDINGS}'
     WHEN found.statuses ?| ARRAY[{_FAILED}] THEN '{JobOutcome.COULD_NOT_RUN}'
     WHEN NOT found.statuses ? 'ok' THEN '{JobOutcome.NOT_RUN}'
     WHEN jobs.kind = 'compare' THEN '{JobOutcome.COMPARED}' ELSE '{JobOutcome.OK}' END
"""

_SUBMISSIONS = f"""
SELECT submissions.id, repositories.name AS repository, origin, request, submissions.created_at,
       CASE WHEN running > 0 OR (queued > 0 AND queued < total) THEN 'running' WHEN queued > 0 THEN 'queued'
            WHEN failed > 0 THEN 'failed' WHEN cancelled > 0 THEN 'cancelled' ELSE 'done' END AS state,
       jsonb_strip_nulls(jsonb_build_object('queued', nullif(queued, 0), 'running', nullif(running, 0), 'done',
            nullif(done, 0),
                         'failed', nullif(failed, 0), 'cancelled', nullif(cancelled, 0))) AS counts,
       coalesce(results.counts, '{{}}') AS results, coalesce(results.outcomes, '{{}}') AS outcomes,
       CASE WHEN queued + running = 0 THEN last END AS finished_at, trial.trial
FROM submissions
JOIN repositories ON repositories.id = submissions.repository_id
CROSS JOIN LATERAL (
    SELECT count(*) AS total, count(*) FILTER (WHERE state = 'queued') AS queued,
           count(*) FILTER (WHERE state = 'running') AS running, count(*) FILTER (WHERE state = 'done') AS done,
           count(*) FILTER (WHERE state = 'failed') AS failed, count(*) FILTER (WHERE state = 'cancelled') AS cancelled,
           max(finished_at) AS last
    FROM jobs WHERE submission_id = submissions.id
) AS jobs
CROSS JOIN LATERAL (
    WITH judged AS (
        SELECT jobs.state, run.id AS run_id, run.statuses, {_OUTCOME} AS outcome
        FROM jobs {_FOUND} WHERE jobs.submission_id = submissions.id
    ), counted AS (
        SELECT counted.key AS status, sum(counted.value::bigint) AS number
        FROM judged
        CROSS JOIN LATERAL jsonb_each_text(coalesce(
            judged.statuses, ({_COUNTED} results WHERE run_id = judged.run_id GROUP BY status) AS fresh))) AS counted
        WHERE judged.run_id IS NOT NULL GROUP BY counted.key
    )
    SELECT (SELECT jsonb_object_agg(status, number) FROM counted) AS counts,
           (SELECT jsonb_object_agg(name, number)
            FROM (SELECT coalesce(outcome, state) AS name, count(*) AS number FROM judged GROUP BY 1) AS by_outcome
           ) AS outcomes
) AS results
LEFT JOIN LATERAL (
    SELECT jsonb_build_object('regression', trials.regression_id, 'purpose', trials.purpose, 'operator', operators.name,
         'base_sha', base.sha, 'head_sha', head.sha) AS trial
    FROM jobs
    JOIN trials ON trials.job_id = jobs.id
    JOIN operators ON operators.id = jobs.operator_id
    JOIN commits AS base ON base.id = trials.base_commit_id
    JOIN commits AS head ON head.id = trials.head_commit_id
    WHERE submissions.origin = '{TRIAL_ORIGIN}' AND jobs.submission_id = submissions.id LIMIT 1
) AS trial ON true
"""


def list_submissions(
    session: Session,
    repository_id: int | None = None,
    before: int | None = None,
    limit: int = 50,
    *,
    trials: bool = True,
    is_open: bool = False,
) -> Page[SubmissionRow]:
    """Submissions, newest first; `before` is the id of the last one of the page before.

    trials: whether those that Warpwatch made to decide on a regression are listed too. is_open: only those with a job
    that waits or runs.
    """
    sql = f"""
    {_SUBMISSIONS}
    WHERE (CAST(:repository_id AS bigint) IS NULL OR submissions.repository_id = :repository_id)
      AND NOT EXISTS (SELECT FROM deletions WHERE submission_id = submissions.id)
      AND (:trials OR origin NOT IN {_OWN_ORIGINS})
      AND (NOT :is_open OR submissions.id IN (SELECT submission_id FROM jobs WHERE state IN ('queued', 'running')))
      AND (CAST(:before AS bigint) IS NULL OR submissions.id < :before)
    ORDER BY submissions.id DESC LIMIT :limit
    """
    asked = {"repository_id": repository_id, "before": before, "trials": trials, "is_open": is_open}
    return fetch_page(session, SubmissionRow, sql, limit, **asked)


_ONE_SUBMISSION = """
WHERE submissions.id = :id AND NOT EXISTS (SELECT FROM deletions WHERE submission_id = submissions.id)
"""


def count_open_runs(session: Session, repository_id: int) -> int:
    """Submissions with a job that waits or runs."""
    sql = """
    SELECT count(DISTINCT submission_id) FROM jobs JOIN operators ON operators.id = jobs.operator_id
    WHERE state IN ('queued', 'running') AND operators.repository_id = :repository_id
    """
    count: int = fetch_scalar(session, sql, repository_id=repository_id)
    return count


def count_trials(session: Session, repository_id: int, since: int, before: int | None = None) -> int:
    """Submissions that Warpwatch made to decide on a regression, with an id from `since` on and below `before`."""
    sql = f"""
    SELECT count(*) FROM submissions
    WHERE repository_id = :repository_id AND id >= :since AND (CAST(:before AS bigint) IS NULL OR id < :before)
      AND origin IN {_OWN_ORIGINS}
    """
    count: int = fetch_scalar(session, sql, repository_id=repository_id, since=since, before=before)
    return count


def read_submission(session: Session, submission_id: int) -> SubmissionRow | None:
    return fetch_one(session, SubmissionRow, _SUBMISSIONS + _ONE_SUBMISSION, id=submission_id)


# Running jobs come before queued ones; among those the queue takes the higher priority, then the older.
_JOBS = f"""
WITH line AS (
    SELECT id, row_number() OVER (PARTITION BY device_id ORDER BY state = 'running' DESC, priority DESC,
         id) - 1 AS position
    FROM jobs WHERE state IN ('queued', 'running')
)
SELECT jobs.id, submission_id, jobs.kind, commits.sha AS commit_sha, commits.subject AS commit_subject,
     base.sha AS base_sha,
       repositories.name AS repository, operators.name AS operator, devices.key AS device_key, state,
       {_OUTCOME} AS outcome, attempt, priority, message, jobs.reason, measured.sha AS unchanged_since, progress,
       CASE WHEN state = 'queued' THEN line.position END AS position, jobs.created_at, started_at, finished_at
FROM jobs
JOIN commits ON commits.id = jobs.commit_id
LEFT JOIN commits AS base ON base.id = jobs.base_commit_id
LEFT JOIN commits AS measured ON measured.id = jobs.unchanged_since_commit_id
JOIN operators ON operators.id = jobs.operator_id
JOIN repositories ON repositories.id = operators.repository_id
JOIN devices ON devices.id = jobs.device_id
LEFT JOIN line ON line.id = jobs.id
{_FOUND}
"""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are asked for: those that match everything given. is_open: those alone that wait or run."""

    state: str | None = None
    kind: str | None = None
    repository_id: int | None = None
    operator: str | None = None
    device: str | None = None
    submission: int | None = None
    is_open: bool = False


def list_ordinals(session: Session, submission_id: int) -> dict[str, int]:
    """The place in history of each commit of a submission, by id."""
    sql = """
    SELECT DISTINCT sha, ordinal FROM jobs JOIN commits ON commits.id = jobs.commit_id WHERE submission_id = :id
    """
    return {row.sha: row.ordinal for row in session.execute(text(sql), {"id": submission_id})}


def list_jobs(session: Session, wanted: JobFilter, before: int | None = None, limit: int = 50) -> Page[JobRow]:
    """Jobs, newest first; `before` is the id of the last one of the page before."""
    sql = f"""
    {_JOBS}
    WHERE (CAST(:state AS text) IS NULL OR state = :state)
      AND (NOT :is_open OR state IN ('queued', 'running'))
      AND (CAST(:kind AS text) IS NULL OR jobs.kind = :kind)
      AND (CAST(:device AS text) IS NULL OR devices.key = :device)
      AND (CAST(:submission AS bigint) IS NULL OR submission_id = :submission)
      AND (CAST(:operator_ids AS bigint[]) IS NULL OR jobs.operator_id = ANY(:operator_ids))
      AND (CAST(:before AS bigint) IS NULL OR jobs.id < :before)
    ORDER BY jobs.id DESC LIMIT :limit
    """
    named = asdict(wanted)
    repository_id, operator = named.pop("repository_id"), named.pop("operator")
    ids = None if repository_id is None and operator is None else find_operator_ids(session, repository_id, operator)
    return fetch_page(session, JobRow, sql, limit, **named, operator_ids=ids, before=before)


_RUNS = """
SELECT runs.id, attempt, workers.name AS worker, state, message, reason, struck_out_reason, runs.started_at,
       finished_at, yielded_to_job_id, times,
       CAST(extract(epoch FROM finished_at - runs.started_at) AS float) AS seconds,
       cards.key AS card_key, card_facts
FROM runs LEFT JOIN workers ON workers.id = runs.worker_id LEFT JOIN cards ON cards.id = runs.card_id
WHERE job_id = :job_id ORDER BY attempt
"""

_RESULTS = f"""
SELECT results.id, commits.sha AS commit_sha, variants.name AS variant,
       cases.key AS case, results.kind, results.status, results.message, details,
       (SELECT median_ns FROM all_points JOIN series ON series.id = all_points.series_id
        WHERE all_points.result_id = results.id AND series.metric = {PRIMARY_METRIC}
        LIMIT 1) AS median_ns,
       (SELECT max(id) FROM traces WHERE result_id = results.id) AS trace_id, device.kind AS device_kind,
       (SELECT coalesce(jsonb_agg(jsonb_build_object(
            'point_id', points.id, 'series_id', series_id, 'metric', metric, 'median_ns', median_ns, 'low_ns', low_ns,
            'high_ns', high_ns, 'noise', noise, 'count', count, 'dropped', dropped, 'roofline_share', roofline_share,
            'bound', bound, 'distribution', details -> 'distributions' -> metric) ORDER BY points.id), '[]')
        FROM all_points AS points JOIN series ON series.id = points.series_id
        WHERE points.result_id = results.id) AS measured
FROM all_results AS results
JOIN variants ON variants.id = results.variant_id
JOIN cases ON cases.id = results.case_id
JOIN devices AS device ON device.id = results.device_id
JOIN commits ON commits.id = results.commit_id
WHERE run_id = (SELECT max(id) FROM runs WHERE job_id = :job_id AND state = 'done')
ORDER BY results.case_id, results.variant_id, results.id
"""

_JOB_FACTS = """
SELECT repositories.name AS repository, spec, devices.kind AS device_kind, definitions_url, jobs.definitions_sha
FROM jobs JOIN operators ON operators.id = jobs.operator_id JOIN devices ON devices.id = jobs.device_id
JOIN repositories ON repositories.id = operators.repository_id WHERE jobs.id = :job_id
"""


def read_job(session: Session, job_id: int) -> JobDetail | None:
    """One job with its runs and the results of the newest run that recorded any; None when it is unknown."""
    job = fetch_one(session, JobRow, _JOBS + "WHERE jobs.id = :job_id", job_id=job_id)
    facts = session.execute(text(_JOB_FACTS), {"job_id": job_id}).one_or_none()
    # Whoever deletes the repository may do so between the two statements.
    if job is None or facts is None:
        return None
    repository, stored, kind, *place = facts
    definitions = definitions_version(*place)
    spec = JobSpec.from_stored(stored)

    def view(measured: list[dict[str, Any]], device_kind: str, **fields: Any) -> ResultView:
        replay = ""
        if job.kind != "compare":
            one_cell = spec.of_cell(fields["variant"], fields["case"])
            words = one_cell.to_command(job.kind, job.commit_sha, job.operator, device_kind, definitions=definitions)
            replay = shlex.join(words)
        return ResultView(measured=[MeasuredSeries(**metric) for metric in measured], replay=replay, **fields)

    runs = fetch(session, _run_row, _RUNS, job_id=job_id)
    command = spec.to_submit_command(repository, job.kind, job.commit_sha, job.operator, job.device_key, job.base_sha)
    return JobDetail(
        job=job,
        repository=repository,
        spec=spec.to_stored(),
        runs=runs,
        results=fetch(session, view, _RESULTS, job_id=job_id),
        replay=shlex.join(command),
        struck_out_reason=next((run.struck_out_reason for run in reversed(runs) if run.state == "done"), None),
        device_kind=kind,
        decision=read_decision(session, job_id),
        definitions=definitions,
    )


def _run_row(
    times: dict[str, Any] | None,
    seconds: float | None,
    card_key: str | None,
    card_facts: dict[str, str] | None,
    **fields: Any,
) -> RunRow:
    measured = None if times is None else from_json(RunTimes, times)
    rest = None if measured is None or seconds is None else max(0.0, seconds - measured.total)
    card = None if card_key is None else Card(card_key, card_facts or {})
    return RunRow(**fields, times=measured, rest_seconds=rest, card=card)


def read_log(session: Session, run_id: int, after_id: int = 0, limit: int = 1000) -> list[LogLine]:
    """Pieces of a run's log after the piece `after_id`, in order."""
    sql = "SELECT id, text, created_at FROM run_logs WHERE run_id = :run_id AND id > :after_id ORDER BY id LIMIT :limit"
    return fetch(session, LogLine, sql, run_id=run_id, after_id=after_id, limit=limit)


def find_submission(session: Session, idempotency_key: str) -> SubmissionRow | None:
    """The submission that was made with this key."""
    return fetch_one(session, SubmissionRow, _SUBMISSIONS + "WHERE idempotency_key = :key", key=idempotency_key)


def read_job_status(session: Session, job_id: int) -> JobStatusRow | None:
    """The state of a job as it is now, cheap enough to be asked at every change; None when it is unknown."""
    sql = """
    SELECT jobs.id AS job_id, state, attempt, message, progress,
           CASE WHEN state = 'queued' THEN (
               SELECT count(*) FROM jobs AS other WHERE other.device_id = jobs.device_id AND (other.state = 'running'
                      OR other.state = 'queued' AND (other.priority > jobs.priority
                                                     OR other.priority = jobs.priority AND other.id < jobs.id))
           ) END AS position,
           (SELECT max(id) FROM runs WHERE job_id = jobs.id) AS run_id
    FROM jobs WHERE jobs.id = :job_id
    """
    return fetch_one(session, JobStatusRow, sql, job_id=job_id)
