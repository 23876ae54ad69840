"""Reads what is known of the noise of the series that a submission timed, so that its report can say which slow-downs
it would have found."""

from __future__ import annotations

from sqlalchemy.orm import Session

from warpwatch.contract.report_facts import TimedFact
from warpwatch.db.reads.lines import ALL_COMMITS, on_line, read_line_of
from warpwatch.db.reads.query import IS_DEVICE_TIME, PRIMARY_METRIC, fetch
from warpwatch.db.reads.statements import NOISE_READINGS

MOST_TIMED = 5000


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
