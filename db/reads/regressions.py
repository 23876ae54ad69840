"""Reads regressions: changes that history suggested and an interleaved comparison decided."""

from __future__ import annotations

from sqlalchemy import text

from db.reads.query import Session, fetch, fetch_one, fetch_page, fetch_scalar
from db.reads.replay import submit_command
from db.reads.rows import NoteRow, Page, RegressionDetail, RegressionRow, RegressionSeriesRow, Verdicts

_REGRESSIONS = """
SELECT regressions.id, operators.name AS operator, devices.key AS device_key, direction, verdict, state, ratio, low, high,
       base.sha AS base_sha, head.sha AS head_sha, head.subject AS head_subject, head.author AS head_author,
       greatest(head.ordinal - base.ordinal - 1, 0) AS commits_between,
       (SELECT count(*) FROM regression_series WHERE regression_id = regressions.id) AS series,
       regressions.created_at, decided_at
FROM regressions
JOIN operators ON operators.id = regressions.operator_id
JOIN devices ON devices.id = regressions.device_id
JOIN commits AS base ON base.id = regressions.base_commit_id
JOIN commits AS head ON head.id = regressions.head_commit_id
"""


def list_regressions(
    session: Session,
    repository_id: int,
    verdict: str | None = "confirmed",
    state: str | None = None,
    direction: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> Page[RegressionRow]:
    """Changes with that verdict, newest first; `before` is the id of the last one of the page before."""
    sql = f"""
    {_REGRESSIONS}
    WHERE operators.repository_id = :repository_id
      AND (CAST(:verdict AS text) IS NULL OR verdict = :verdict)
      AND (CAST(:state AS text) IS NULL OR state = :state)
      AND (CAST(:direction AS text) IS NULL OR direction = :direction)
      AND (CAST(:before AS bigint) IS NULL OR regressions.id < :before)
    ORDER BY regressions.id DESC LIMIT :limit
    """
    return fetch_page(
        session, RegressionRow, sql, limit,
        repository_id=repository_id, verdict=verdict, state=state, direction=direction, before=before,
    )  # fmt: skip


_SERIES = """
SELECT regression_series.series_id, cases.key AS case, variants.name AS variant, series.metric,
       regression_series.verdict, suspected_ratio, regression_series.ratio, regression_series.low, regression_series.high,
       coalesce(compared.base_ns, '[]') AS base_ns, coalesce(compared.head_ns, '[]') AS head_ns
FROM regression_series
JOIN regressions ON regressions.id = regression_series.regression_id
JOIN series ON series.id = regression_series.series_id
JOIN cases ON cases.id = series.case_id
JOIN variants ON variants.id = series.variant_id
LEFT JOIN LATERAL (
    SELECT base_ns, head_ns FROM comparisons JOIN runs ON runs.id = comparisons.run_id
    WHERE comparisons.series_id = regression_series.series_id AND runs.job_id = regressions.compare_job_id
    ORDER BY comparisons.id DESC LIMIT 1
) AS compared ON true
WHERE regression_series.regression_id = :id ORDER BY regression_series.verdict <> 'confirmed', series.id
"""

_NOTES = "SELECT author, state, note, created_at FROM regression_notes WHERE regression_id = :id ORDER BY id"

_LINKS = """
SELECT repositories.name AS repository, compare_job_id, base_trace_id, head_trace_id
FROM regressions JOIN operators ON operators.id = regressions.operator_id
JOIN repositories ON repositories.id = operators.repository_id WHERE regressions.id = :id
"""


def read_regression(session: Session, regression_id: int) -> RegressionDetail | None:
    """One change, whatever its verdict, with the series that show it and what people wrote; None when it is unknown."""
    row = fetch_one(session, RegressionRow, _REGRESSIONS + "WHERE regressions.id = :id", id=regression_id)
    if row is None:
        return None
    series = fetch(session, RegressionSeriesRow, _SERIES, id=regression_id)
    links = session.execute(text(_LINKS), {"id": regression_id}).mappings().one()
    replay = submit_command(
        links["repository"], row.head_sha, "compare", row.operator, row.device_key, base=row.base_sha,
        variants=dict.fromkeys(one.variant for one in series), cases=dict.fromkeys(one.case for one in series),
    )  # fmt: skip
    notes = fetch(session, NoteRow, _NOTES, id=regression_id)
    return RegressionDetail(regression=row, series=series, notes=notes, replay=replay, **links)


# A change belongs to a submission that benched its head commit, on the same device.
_OF_SUBMISSION = """
EXISTS (SELECT FROM jobs WHERE jobs.submission_id = :submission_id AND jobs.kind = 'bench'
        AND jobs.commit_id = regressions.head_commit_id AND jobs.operator_id = regressions.operator_id
        AND jobs.device_id = regressions.device_id)
"""


def read_verdicts(session: Session, submission_id: int) -> Verdicts:
    """What is known of a submission's commits, and how much is still to be decided."""
    sql = f"""
    SELECT (SELECT count(*) FROM jobs WHERE submission_id = :submission_id AND kind = 'bench' AND judged_at IS NULL)
         + (SELECT count(*) FROM regressions WHERE verdict = 'suspected' AND {_OF_SUBMISSION})
    """
    confirmed = f"{_REGRESSIONS} WHERE verdict = 'confirmed' AND {_OF_SUBMISSION} ORDER BY regressions.id"
    return Verdicts(
        fetch_scalar(session, sql, submission_id=submission_id),
        fetch(session, RegressionRow, confirmed, submission_id=submission_id),
    )
