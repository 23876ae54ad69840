"""Counts the results of commits and runs once, so that lists need not count millions of rows each time.

What is not counted yet is counted by the query that asks. Whoever writes results of a commit forgets its counts.
"""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.reads.code import RESULT_COUNTS

_RUNS = """
UPDATE runs SET statuses = coalesce(
    (SELECT jsonb_object_agg(status, number) FROM (
        SELECT status, count(*) AS number FROM results WHERE run_id = runs.id GROUP BY status) AS counted), '{}')
WHERE id = ANY(ARRAY(SELECT id FROM runs WHERE state = 'done' AND statuses IS NULL ORDER BY id DESC LIMIT :limit))
"""
_LOCK_COMMITS = """
SELECT id FROM commits WHERE counts IS NULL AND id < :before ORDER BY id DESC LIMIT :limit FOR UPDATE SKIP LOCKED
"""
# A job that has not ended may write results at this moment.
_COMMITS = f"""
UPDATE commits SET counts = jsonb_build_object('points', points, 'wrong', wrong, 'broken', broken) FROM (
    SELECT commits.id, counted.* FROM commits CROSS JOIN LATERAL ({RESULT_COUNTS}) AS counted
    WHERE commits.id = ANY(:ids)
      AND NOT EXISTS (SELECT FROM jobs WHERE jobs.commit_id = commits.id AND state IN ('queued', 'running'))
      AND NOT EXISTS (SELECT FROM jobs WHERE jobs.base_commit_id = commits.id AND state IN ('queued', 'running'))
) AS counted
WHERE commits.id = counted.id
"""


def count_runs(s: Session, limit: int = 100) -> int:
    """Counts the results of some runs that ended, by status; returns how many runs."""
    return len(s.execute(text(_RUNS + "RETURNING id"), {"limit": limit}).all())


def count_commits(s: Session, before: int, limit: int = 20) -> int | None:
    """Counts the results of some commits before the row `before`; the row to go on at, None at the end."""
    # The locks come first: whoever forgets the counts of one of these then waits, and forgets what is counted here.
    ids = list[int](s.scalars(text(_LOCK_COMMITS), {"before": before, "limit": limit}))
    if not ids:
        return None
    s.execute(text(_COMMITS), {"ids": ids})
    return min(ids)


def forget_counts(s: Session, commit_ids: list[int]) -> None:
    """Says that a running job writes results of the commits in this transaction."""
    s.execute(text("UPDATE commits SET counts = NULL WHERE id = ANY(:ids) AND counts IS NOT NULL"), {"ids": commit_ids})


def forget_all_counts(s: Session, commit_ids: list[int]) -> None:
    """The same where no running job keeps the commits from being counted at this moment: it locks them."""
    s.execute(text("UPDATE commits SET counts = NULL WHERE id = ANY(:ids)"), {"ids": sorted(commit_ids)})
