"""Reads what a report on a submission is made from; which of it matters is for server.reports to say."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.report_facts import (
    CellFact,
    ChangeFact,
    JobFact,
    PairFact,
    ReportedSeries,
    ReportFacts,
    ResultFact,
    TimedFact,
)
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Reason, Signal
from warpwatch.db.reads.code import find_repository
from warpwatch.db.reads.lines import ALL_COMMITS, on_line, on_line_of, read_line_of
from warpwatch.db.reads.query import (
    IS_DEVICE_TIME,
    IS_UNCHANGED,
    PRIMARY_METRIC,
    SIGNAL,
    fetch,
    fetch_one,
    fetch_scalar,
)
from warpwatch.db.reads.statements import NOISE_READINGS
from warpwatch.db.reads.trades import list_trades
from warpwatch.db.regressions import CAN_CONFIRM, CULPRIT, IS_SUSPECTED, MERGED_CULPRIT, SUPERSEDED, deciding_rounds

MAX_SERIES = 20_000
MOST_TIMED = 5000
"""Variants on cases and devices of one submission that a report lists."""
MAX_FACTS = 5000
"""Rows of a kind that a report is made from; what fails as often as that fails for one reason."""

# The results of a comparison are profiles of both commits, and those of the base are not the change's.
_FAULTS = f"""
SELECT jobs.id AS job_id, results.kind, results.status, results.message, operators.name AS operator,
     variants.name AS variant,
       cases.key AS case, devices.key AS device_key, devices.kind AS device_kind, commits.sha AS head_sha,
            base.sha AS base_sha,
       jobs.spec,
       coalesce(results.status = (
           SELECT before.status FROM results AS before
           WHERE before.commit_id = submissions.base_commit_id AND before.variant_id = results.variant_id
             AND before.case_id = results.case_id AND before.device_id = results.device_id
                  AND before.kind = results.kind
           ORDER BY before.id DESC LIMIT 1
       ), false) AS known_before,
       (SELECT CASE WHEN later.status = 'ok' THEN newer.sha END
        FROM jobs AS other JOIN runs ON runs.job_id = other.id JOIN results AS later ON later.run_id = runs.id
        JOIN commits AS newer ON newer.id = later.commit_id
        WHERE other.submission_id = submissions.id AND other.operator_id = jobs.operator_id
          AND other.kind = results.kind AND later.kind = results.kind AND later.variant_id = results.variant_id
          AND later.case_id = results.case_id AND later.device_id = results.device_id
          AND newer.ordinal > commits.ordinal AND {on_line_of("commits.id", "newer.id")}
        ORDER BY newer.ordinal DESC, later.id DESC LIMIT 1) AS right_at
FROM submissions
JOIN jobs ON jobs.submission_id = submissions.id AND jobs.kind <> 'compare' AND jobs.commit_id IS DISTINCT
     FROM submissions.base_commit_id
CROSS JOIN LATERAL (SELECT max(id) AS id FROM runs WHERE job_id = jobs.id AND state = 'done') AS run
JOIN results ON results.run_id = run.id AND results.status NOT IN ('ok', 'unsupported')
JOIN operators ON operators.id = results.operator_id
JOIN variants ON variants.id = results.variant_id
JOIN cases ON cases.id = results.case_id
JOIN devices ON devices.id = results.device_id
JOIN commits ON commits.id = results.commit_id
LEFT JOIN commits AS base ON base.id = submissions.base_commit_id
WHERE submissions.id = :id ORDER BY results.id LIMIT :limit
"""

_JOBS = f"""
SELECT jobs.id AS job_id, jobs.kind, jobs.state, jobs.message, jobs.reason, operators.name AS operator,
       devices.key AS device_key,
       devices.kind AS device_kind, commits.sha AS head_sha, base.sha AS base_sha, jobs.spec,
       measured.sha AS unchanged_since,
       (SELECT CASE WHEN other.state = 'done' THEN newer.sha END
        FROM jobs AS other JOIN commits AS newer ON newer.id = other.commit_id
        WHERE other.submission_id = jobs.submission_id AND other.operator_id = jobs.operator_id
          AND other.device_id = jobs.device_id AND other.kind = jobs.kind AND jobs.state = 'failed'
          AND newer.ordinal > commits.ordinal AND {on_line_of("commits.id", "newer.id")}
        ORDER BY newer.ordinal DESC, other.id DESC LIMIT 1) AS right_at
FROM jobs
JOIN operators ON operators.id = jobs.operator_id
JOIN devices ON devices.id = jobs.device_id
JOIN commits ON commits.id = jobs.commit_id
LEFT JOIN commits AS base ON base.id = jobs.base_commit_id
LEFT JOIN commits AS measured ON measured.id = jobs.unchanged_since_commit_id
WHERE submission_id = :id AND (state IN ('failed', 'cancelled')
     -- Without a base, an operator is unchanged where no commit of the submission changed it.
     OR ({IS_UNCHANGED} AND (jobs.base_commit_id IS NOT NULL OR NOT EXISTS (
         SELECT FROM jobs AS other WHERE other.submission_id = :id
           AND other.operator_id = jobs.operator_id AND other.unchanged_since_commit_id IS NULL))))
ORDER BY jobs.id LIMIT :limit
"""

# Bisecting moves the ends of a change; its first trial keeps the commits between which it was suspected.
FIRST_TRIAL = """
LEFT JOIN LATERAL (
    SELECT base_commit_id, head_commit_id FROM trials WHERE regression_id = regressions.id ORDER BY trials.id LIMIT 1
) AS first ON true
"""

# What was repeated is said by the longer comparison.
_PAIRS = f"""
SELECT jobs.id AS job_id, comparisons.status, comparisons.message, comparisons.reason, base_ns, head_ns,
       operators.name AS operator,
       variants.name AS variant, cases.key AS case, devices.key AS device_key, devices.kind AS device_kind,
       head.sha AS head_sha, base.sha AS base_sha, jobs.spec,
       EXISTS (SELECT FROM regressions JOIN regression_series ON regression_id = regressions.id {FIRST_TRIAL}
               WHERE jobs.commit_id IN (regressions.head_commit_id, first.head_commit_id)
                 AND jobs.base_commit_id IN (regressions.base_commit_id, first.base_commit_id)
                 AND regression_series.series_id = comparisons.series_id AND regressions.state IN ('accepted',
                      'invalid')
       ) AS is_accepted,
       (SELECT regression_id FROM trials WHERE trials.job_id = jobs.id) AS regression_id,
       series.metric, series.protocol, {SIGNAL} AS signal
FROM (
    SELECT DISTINCT ON (series_id, comparisons.base_commit_id, head_commit_id) comparisons.*, jobs.id AS job_id
    FROM jobs
    CROSS JOIN LATERAL (SELECT max(id) AS id FROM runs WHERE job_id = jobs.id AND state = 'done') AS run
    JOIN comparisons ON comparisons.run_id = run.id
    WHERE jobs.submission_id = :id AND jobs.kind = 'compare'
    ORDER BY series_id, comparisons.base_commit_id, head_commit_id, comparisons.status = 'ok' DESC, comparisons.id DESC
) AS comparisons
JOIN jobs ON jobs.id = comparisons.job_id
JOIN series ON series.id = comparisons.series_id
JOIN operators ON operators.id = series.operator_id
JOIN variants ON variants.id = series.variant_id
JOIN cases ON cases.id = series.case_id
JOIN devices ON devices.id = series.device_id
JOIN commits AS head ON head.id = jobs.commit_id
JOIN commits AS base ON base.id = jobs.base_commit_id
ORDER BY comparisons.id LIMIT :limit
"""

# A comparison of an older commit is history where the newest commit of its line was compared with the same base.
_ENDS = f"""
(WITH compared AS (
    SELECT DISTINCT commits.id, sha, ordinal FROM jobs JOIN commits ON commits.id = jobs.commit_id
    WHERE submission_id = :id AND kind = 'compare'
 )
 SELECT coalesce(jsonb_object_agg(older.sha, newest.sha), '{{}}') FROM compared AS older
 CROSS JOIN LATERAL (
    SELECT sha FROM compared WHERE ordinal > older.ordinal AND {on_line_of("older.id", "compared.id")}
    ORDER BY ordinal DESC LIMIT 1
 ) AS newest)
"""

# A change belongs to a submission that benched the commit it begins at, or was suspected at, on its device. To one that
# is held against a base it belongs only where it was suspected between the two, and where they were not measured in
# turn: then those rounds decide.
_OF_SUBMISSION = """
EXISTS (SELECT FROM jobs WHERE jobs.submission_id = :id AND jobs.kind = 'bench'
        AND jobs.commit_id IN (regressions.head_commit_id, first.head_commit_id)
        AND jobs.operator_id = regressions.operator_id AND jobs.device_id = regressions.device_id)
AND (submissions.base_commit_id IS NULL
     OR (submissions.base_commit_id IN (regressions.base_commit_id, first.base_commit_id)
         AND NOT EXISTS (SELECT FROM jobs WHERE jobs.submission_id = :id AND jobs.kind = 'compare'
                         AND jobs.operator_id = regressions.operator_id AND jobs.device_id = regressions.device_id)))
"""

_CHANGES = f"""
SELECT regressions.id AS regression_id, regressions.direction, regression_series.verdict, regressions.state,
       coalesce(regression_series.ratio, regression_series.suspected_ratio) AS ratio, regression_series.low,
       regression_series.high, coalesce(compared.base_ns, '[]') AS base_ns, coalesce(compared.head_ns, '[]') AS head_ns,
       operators.name AS operator, variants.name AS variant, cases.key AS case, devices.key AS device_key,
       devices.kind AS device_kind, head.sha AS head_sha, base.sha AS base_sha,
       CASE WHEN ({CULPRIT}) IS NULL THEN '' ELSE head.subject END AS message,
       {MERGED_CULPRIT} AS merged_sha, merged_head.subject AS merged_subject, regression_series.left_ratio,
       fixed.sha AS fixed_by_sha,
       EXISTS (SELECT FROM jobs JOIN commits AS newest ON newest.id = jobs.commit_id
               WHERE jobs.submission_id = submissions.id AND jobs.operator_id = regressions.operator_id
                 AND newest.ordinal >= fixed.ordinal AND {on_line_of("fixed.id", "newest.id")}) AS is_over,
       {CAN_CONFIRM} AS can_confirm, series.metric, series.protocol, {SIGNAL} AS signal, regressions.cause
FROM submissions
CROSS JOIN LATERAL (
    SELECT DISTINCT operator_id, device_id FROM jobs WHERE submission_id = submissions.id AND kind = 'bench'
) AS asked
JOIN operators ON operators.id = asked.operator_id
JOIN regressions ON regressions.operator_id = asked.operator_id AND regressions.device_id = asked.device_id
     AND regressions.direction <> 'broken' AND (regressions.verdict IN ('confirmed', 'unsure') OR {IS_SUSPECTED})
     -- What turned out to be the same change as another one is told by that one.
     AND NOT ({SUPERSEDED})
{FIRST_TRIAL}
JOIN regression_series ON regression_series.regression_id = regressions.id
     AND regression_series.verdict = regressions.verdict
JOIN series ON series.id = regression_series.series_id
JOIN variants ON variants.id = series.variant_id
JOIN cases ON cases.id = series.case_id
JOIN devices ON devices.id = series.device_id
JOIN commits AS head ON head.id = regressions.head_commit_id
JOIN commits AS base ON base.id = regressions.base_commit_id
LEFT JOIN commits AS merged_head ON merged_head.id = regressions.merged_head_commit_id
LEFT JOIN commits AS fixed ON fixed.id = regression_series.fixed_by_commit_id
{deciding_rounds("series.id")}
WHERE submissions.id = :id AND {_OF_SUBMISSION} ORDER BY regressions.id, series.id LIMIT :limit
"""

# What is broken needs no comparison: a check that was wrong is in the report already.
_PENDING = f"""
((SELECT count(*) FROM jobs WHERE submission_id = submissions.id AND judged_at IS NULL)
+ (SELECT count(*) FROM regressions JOIN operators ON operators.id = regressions.operator_id {FIRST_TRIAL}
   WHERE operators.repository_id = submissions.repository_id AND verdict = 'suspected' AND settled_at IS NULL
     AND direction <> 'broken' AND {_OF_SUBMISSION}))
"""

_HEAD = f"""
SELECT submissions.id AS submission_id, repositories.name AS repository, repositories.url AS repository_url,
       base.sha AS base_sha, submissions.created_at, head.id AS head_commit_id, head.sha AS head_sha,
       CAST(submissions.request ->> 'require_detectable' AS double precision) AS required,
       (SELECT coalesce(jsonb_object_agg(state, number), '{{}}') FROM (
            SELECT state, count(*) AS number FROM jobs WHERE submission_id = submissions.id GROUP BY state
       ) AS states) AS counts,
       (SELECT coalesce(jsonb_object_agg(status, number), '{{}}') FROM (
            SELECT results.status, count(*) AS number
            FROM jobs CROSS JOIN LATERAL (SELECT max(id) AS id FROM runs WHERE job_id = jobs.id
                 AND state = 'done') AS run
            JOIN results ON results.run_id = run.id
            WHERE jobs.submission_id = submissions.id AND jobs.kind <> 'compare' AND jobs.commit_id IS DISTINCT
                 FROM submissions.base_commit_id
            GROUP BY results.status
       ) AS statuses) AS results,
       {_PENDING} AS pending, {_ENDS} AS ends,
       (SELECT coalesce(jsonb_object_agg(key, name), '{{}}') FROM devices
        WHERE id IN (SELECT device_id FROM jobs WHERE submission_id = submissions.id)) AS device_names
FROM submissions
JOIN repositories ON repositories.id = submissions.repository_id
LEFT JOIN commits AS base ON base.id = submissions.base_commit_id
LEFT JOIN LATERAL (
    SELECT commits.id, sha FROM jobs JOIN commits ON commits.id = jobs.commit_id
    WHERE submission_id = submissions.id AND commits.id IS DISTINCT FROM submissions.base_commit_id
    ORDER BY commits.ordinal DESC, commits.id DESC LIMIT 1
) AS head ON true
WHERE submissions.id = :id
"""


# What jobs of a working tree found is stored apart from all results; a report on their own submission tells it.
_OF_PATCH = """
FROM jobs JOIN patch_outcomes ON patch_outcomes.job_id = jobs.id
CROSS JOIN LATERAL jsonb_array_elements(outcome -> CASE jobs.kind WHEN 'check' THEN 'findings' ELSE 'comparisons' END)
     AS row
JOIN operators ON operators.id = jobs.operator_id
JOIN devices ON devices.id = jobs.device_id
JOIN commits AS head ON head.id = jobs.commit_id
LEFT JOIN commits AS base ON base.id = jobs.base_commit_id
WHERE jobs.submission_id = :id
"""
_PATCH_COLUMNS = """
jobs.id AS job_id, row ->> 'status' AS status, row ->> 'message' AS message, operators.name AS operator,
row ->> 'variant' AS variant, row ->> 'case' AS case, devices.key AS device_key, devices.kind AS device_kind,
head.sha AS head_sha, base.sha AS base_sha, jobs.spec
"""
_PATCH_FAULTS = f"""
SELECT {_PATCH_COLUMNS}, jobs.kind, false AS known_before, NULL AS right_at {_OF_PATCH}
  AND jobs.kind = 'check' AND row ->> 'status' NOT IN ('ok', 'unsupported') ORDER BY jobs.id LIMIT :limit
"""
_PATCH_PAIRS = f"""
SELECT {_PATCH_COLUMNS}, row ->> 'reason' AS reason, row -> 'base_ns' AS base_ns, row -> 'head_ns' AS head_ns,
       false AS is_accepted, NULL AS regression_id, row ->> 'metric' AS metric, row ->> 'protocol' AS protocol,
       CASE WHEN row ->> 'metric' = '{Signal.LAUNCH}' THEN '{Signal.LAUNCH}' WHEN EXISTS (
           SELECT FROM jsonb_array_elements(outcome -> 'comparisons') AS other
           WHERE other ->> 'metric' = '{Signal.LAUNCH}' AND other ->> 'variant' = row ->> 'variant'
             AND other ->> 'case' = row ->> 'case') THEN '{Signal.KERNEL}' END AS signal
       {_OF_PATCH} AND jobs.kind = 'compare' ORDER BY jobs.id LIMIT :limit
"""
_PATCH_STATUSES = f"SELECT row ->> 'status', count(*) {_OF_PATCH} AND jobs.kind = 'check' GROUP BY 1"


# Planning a query that joins a dozen tables takes up to 20 ms, and most submissions have no row for most of these.
_CONTENTS = f"""
SELECT EXISTS (SELECT FROM jobs WHERE submission_id = :id AND kind = 'compare') AS has_comparisons,
       EXISTS (SELECT FROM jobs
               JOIN regressions ON regressions.operator_id = jobs.operator_id AND regressions.device_id = jobs.device_id
               WHERE submission_id = :id AND kind = 'bench' AND direction <> 'broken'
                 AND (verdict IN ('confirmed', 'unsure') OR {IS_SUSPECTED})) AS has_changes,
       EXISTS (SELECT FROM jobs JOIN patch_outcomes ON patch_outcomes.job_id = jobs.id
               WHERE submission_id = :id) AS has_patch,
       EXISTS (SELECT FROM jobs WHERE submission_id = :id AND kind = 'bench') AS has_benches
"""


@dataclass(frozen=True, slots=True)
class _Contents:
    """Which parts a report may have: comparisons, changes of what it benched, results of a working tree, benches."""

    has_comparisons: bool
    has_changes: bool
    has_patch: bool
    has_benches: bool


def list_reported_series(session: Session, submission_id: int) -> list[ReportedSeries]:
    """The series that a submission measured, without those that cannot run on its device."""
    sql = """
    SELECT DISTINCT operators.name AS operator, variants.name AS variant, cases.key AS case, devices.key AS device
    FROM jobs
    CROSS JOIN LATERAL (SELECT max(id) AS id FROM runs WHERE job_id = jobs.id AND state = 'done') AS run
    JOIN results ON results.run_id = run.id AND results.status <> 'unsupported'
    JOIN operators ON operators.id = results.operator_id
    JOIN variants ON variants.id = results.variant_id
    JOIN cases ON cases.id = results.case_id
    JOIN devices ON devices.id = results.device_id
    WHERE jobs.submission_id = :id ORDER BY 1, 4, 2, 3 LIMIT :limit
    """
    return fetch(session, ReportedSeries, sql, id=submission_id, limit=MAX_SERIES)


def count_pending(session: Session, submission_id: int) -> int:
    """How many jobs and verdicts of a submission are still to come."""
    found: int | None = fetch_scalar(session, f"SELECT {_PENDING} FROM submissions WHERE id = :id", id=submission_id)
    return found or 0


def read_report_facts(session: Session, submission_id: int) -> ReportFacts | None:
    """The facts for a report on a submission; None when the submission is unknown."""
    found = fetch_one(session, ReportFacts, _HEAD, id=submission_id)
    if found is None:
        return None
    repository = found.repository
    registered = find_repository(session, repository)
    definitions = registered.definitions if registered is not None else None

    def job(
        job_id: int, state: str, message: str, reason: str | None, unchanged_since: str | None, **cell: Any
    ) -> JobFact:
        kind, spec, right_at = cell.pop("kind"), cell.pop("spec"), cell.pop("right_at")
        where = CellFact(variant=None, case=None, replay=_submit(repository, kind, spec, **cell), **cell)
        return JobFact(job_id, kind, state, message, _reason(reason), unchanged_since, where, right_at)

    def fault(
        job_id: int,
        kind: str,
        status: str,
        message: str,
        known_before: bool,
        right_at: str | None,
        spec: JobSpec,
        **cell: Any,
    ) -> ResultFact:
        place = (cell["head_sha"], cell["operator"], cell["device_kind"])
        command = spec.of_cell(cell["variant"], cell["case"]).to_command(kind, *place, definitions=definitions)
        where = CellFact(replay=shlex.join(command), **cell)
        return ResultFact(job_id, kind, status, message, known_before, where, right_at)

    def compared(spec: JobSpec, **cell: Any) -> CellFact:
        own = spec.of_cell(cell["variant"], cell["case"])
        return CellFact(replay=_submit(repository, "compare", own, **cell), **cell)

    def pair(reason: str | None, spec: JobSpec, **columns: Any) -> PairFact:
        own = {name: columns.pop(name) for name in _PAIR_FIELDS}
        return PairFact(reason=_reason(reason), cell=compared(spec, **columns), **own)

    def change(**columns: Any) -> ChangeFact:
        own = {name: columns.pop(name) for name in _CHANGE_FIELDS}
        return ChangeFact(cell=compared(JobSpec(), **columns), **own)

    parameters = {"id": submission_id, "limit": MAX_FACTS}
    (contents,) = fetch(session, _Contents, _CONTENTS, id=submission_id)
    found.jobs.extend(fetch(session, job, _JOBS, **parameters))
    if found.results.keys() - {"ok", "unsupported"}:
        found.faults.extend(fetch(session, fault, _FAULTS, **parameters))
    if contents.has_comparisons:
        found.pairs.extend(fetch(session, pair, _PAIRS, **parameters))
    if contents.has_changes:
        found.changes.extend(fetch(session, change, _CHANGES, **parameters))
    if contents.has_benches and not found.pending and found.head_commit_id is not None:
        found.timed.extend(list_timed(session, submission_id, found.head_commit_id))
    if contents.has_patch:
        found.faults.extend(fetch(session, fault, _PATCH_FAULTS, **parameters))
        found.pairs.extend(fetch(session, pair, _PATCH_PAIRS, **parameters))
        for status, count in session.execute(text(_PATCH_STATUSES), parameters):
            found.results[status] = count
    if found.head_commit_id is not None:
        found.trades.extend(list_trades(session, [found.head_commit_id]))
    return found


_PAIR_FIELDS = tuple(
    field.name for field in fields(PairFact) if field.name not in ("cell", "reason", "stop", "is_local")
)
_CHANGE_FIELDS = tuple(field.name for field in fields(ChangeFact) if field.name != "cell")


def _reason(column: str | None) -> Reason | None:
    return None if column is None else Reason(column)


def _submit(repository: str, kind: str, spec: JobSpec, **cell: Any) -> str:
    base_sha = cell["base_sha"] if kind == "compare" else None
    return shlex.join(
        spec.to_submit_command(repository, kind, cell["head_sha"], cell["operator"], cell["device_key"], base_sha)
    )


_TIMED = f"""
SELECT operator, variant, "case", device_key, device_kind, coalesce(past.readings, '[]') AS readings,
       coalesce(tried.base_ns, '[]') AS base_ns, coalesce(tried.head_ns, '[]') AS head_ns, tried.reason,
       coalesce(protocol, '') AS protocol
FROM (
    SELECT DISTINCT ON (operators.name, variants.name, cases.key, device.key) operators.name AS operator,
           variants.name AS variant, cases.key AS "case", device.key AS device_key, device.kind AS device_kind, at.*
    FROM submissions
    JOIN jobs ON jobs.submission_id = submissions.id AND jobs.kind = 'bench'
         AND jobs.commit_id IS DISTINCT FROM submissions.base_commit_id
    CROSS JOIN LATERAL (SELECT max(id) AS id FROM runs WHERE job_id = jobs.id AND state = 'done') AS run
    JOIN results ON results.run_id = run.id AND results.kind = 'bench' AND results.status = 'ok'
    JOIN operators ON operators.id = results.operator_id
    JOIN variants ON variants.id = results.variant_id
    JOIN cases ON cases.id = results.case_id
    JOIN devices AS device ON device.id = results.device_id
    LEFT JOIN LATERAL (
        SELECT series_id, protocol, points.commit_id, points.ordinal, environment_id, card_id
        FROM points JOIN series ON series.id = points.series_id AND {IS_DEVICE_TIME}
        WHERE points.result_id = results.id ORDER BY series.metric = {PRIMARY_METRIC} DESC LIMIT 1
    ) AS at ON true
    WHERE submissions.id = :id
    ORDER BY operators.name, variants.name, cases.key, device.key, results.ordinal DESC, results.id DESC LIMIT :limit
) AS timed
LEFT JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_array(ordinal, commit_id, median_ns, low_ns, high_ns) ORDER BY ordinal, id) AS readings
    FROM (
        SELECT id, ordinal, commit_id, median_ns, low_ns, high_ns FROM points
        WHERE points.series_id = timed.series_id AND points.ordinal <= timed.ordinal
          AND points.commit_id <> timed.commit_id AND points.environment_id = timed.environment_id
          AND points.card_id IS NOT DISTINCT FROM timed.card_id AND {on_line("points.commit_id")}
        ORDER BY ordinal DESC, id DESC LIMIT {NOISE_READINGS}
    ) AS newest
) AS past ON true
LEFT JOIN LATERAL (
    SELECT base_ns, head_ns, comparisons.reason FROM comparisons
    JOIN runs ON runs.id = comparisons.run_id
    JOIN trials ON trials.job_id = runs.job_id AND trials.purpose IN ('confirm', 'retry')
    WHERE comparisons.series_id = timed.series_id AND comparisons.head_commit_id = timed.commit_id
      AND comparisons.status = 'ok'
    ORDER BY comparisons.id DESC LIMIT 1
) AS tried ON true
"""


def list_timed(session: Session, submission_id: int, head_commit_id: int) -> list[TimedFact]:
    """The series that a submission timed at other commits than its base, with earlier readings of the line that its
    newest commit is on."""
    line = read_line_of(session, head_commit_id) or ALL_COMMITS
    return fetch(session, TimedFact, _TIMED, id=submission_id, limit=MOST_TIMED, **line.parameters)
