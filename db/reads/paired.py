"""Reads the paired rounds of two commits, of whatever A/B jobs measured them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from warpwatch.db.reads.query import fetch

MOST_PAIRS = 1000
"""Series of two commits that are read."""


@dataclass(frozen=True, slots=True)
class PairedRounds:
    """Paired rounds of one series at two commits; base_ns[i] was taken beside head_ns[i]. is_trial: whether they test a
    suspicion."""

    job_id: int
    is_trial: bool
    operator: str
    case: str
    variant: str
    device_key: str
    device_kind: str
    series_id: int
    operator_id: int
    device_id: int
    metric: str
    protocol: str
    reason: str | None
    base_ns: list[float]
    head_ns: list[float]


def list_paired_rounds(
    session: Session, base_commit_id: int, head_commit_id: int, device_id: int | None = None
) -> list[PairedRounds]:
    """The newest comparison of every series between two commits, on one device or on all. Those of two toolchains are
    left out: they do not tell what the commits do."""
    sql = """
    SELECT DISTINCT ON (comparisons.series_id) runs.job_id,
           EXISTS (SELECT FROM trials WHERE trials.job_id = jobs.id) AS is_trial, operators.name AS operator,
           cases.key AS case, variants.name AS variant, devices.key AS device_key, devices.kind AS device_kind,
           comparisons.series_id, series.operator_id, series.device_id, series.metric, series.protocol,
           comparisons.reason, base_ns, head_ns
    FROM jobs JOIN runs ON runs.job_id = jobs.id AND runs.state = 'done'
    JOIN comparisons ON comparisons.run_id = runs.id AND comparisons.status = 'ok'
    JOIN series ON series.id = comparisons.series_id
    JOIN operators ON operators.id = series.operator_id JOIN cases ON cases.id = series.case_id
    JOIN variants ON variants.id = series.variant_id JOIN devices ON devices.id = series.device_id
    WHERE jobs.commit_id = :head AND jobs.base_commit_id = :base AND jobs.kind = 'compare'
      AND jobs.spec -> 'toolchains' IS NULL
      AND (CAST(:device_id AS bigint) IS NULL OR jobs.device_id = :device_id)
    ORDER BY comparisons.series_id, comparisons.id DESC LIMIT :limit
    """
    values = {"base": base_commit_id, "head": head_commit_id, "device_id": device_id, "limit": MOST_PAIRS}
    return fetch(session, PairedRounds, sql, **values)
