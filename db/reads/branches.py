"""Reads what a branch would do to the watched one: paired rounds of its newest commit and of its merge base."""

from __future__ import annotations

from dataclasses import dataclass

from warpwatch.db.reads.query import Session, fetch

MOST_PAIRS = 1000
"""Comparisons of one branch that are read."""


@dataclass(frozen=True, slots=True)
class BranchPair:
    """Paired rounds of one series at the two ends of a branch; base_ns[i] was taken beside head_ns[i]."""

    job_id: int
    operator: str
    case: str
    variant: str
    device_key: str
    device_kind: str
    series_id: int
    reason: str | None
    base_ns: list[float]
    head_ns: list[float]


def list_branch_pairs(session: Session, base_commit_id: int, head_commit_id: int) -> list[BranchPair]:
    """The newest comparison of every series between two commits."""
    sql = """
    SELECT DISTINCT ON (comparisons.series_id) runs.job_id, operators.name AS operator, cases.key AS case,
           variants.name AS variant, devices.key AS device_key, devices.kind AS device_kind, comparisons.series_id,
           comparisons.reason, base_ns, head_ns
    FROM jobs JOIN runs ON runs.job_id = jobs.id AND runs.state = 'done'
    JOIN comparisons ON comparisons.run_id = runs.id AND comparisons.status = 'ok'
    JOIN series ON series.id = comparisons.series_id
    JOIN operators ON operators.id = series.operator_id JOIN cases ON cases.id = series.case_id
    JOIN variants ON variants.id = series.variant_id JOIN devices ON devices.id = series.device_id
    WHERE jobs.commit_id = :head AND jobs.base_commit_id = :base AND jobs.kind = 'compare'
    ORDER BY comparisons.series_id, comparisons.id DESC LIMIT :limit
    """
    return fetch(session, BranchPair, sql, base=base_commit_id, head=head_commit_id, limit=MOST_PAIRS)
