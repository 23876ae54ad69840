"""Deletes repositories, submissions and branches, row by row in transactions that each take a moment.

A repository disappears at once for everybody who asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.words import JobState
from warpwatch.db.errors import NotFoundError, StateError
from warpwatch.db.submissions import cancel_job
from warpwatch.db.tallies import forget_all_counts
from warpwatch.db.trends import forget_trends

_OF_OPERATORS = "operator_id = ANY(SELECT id FROM operators WHERE repository_id = :id)"
_OF_REPOSITORY = "repository_id = :id"
_STEPS = (
    # Each brings along what refers to it: results their points, samples and traces, jobs their runs and logs.
    ("all_results", _OF_OPERATORS, 500),
    ("jobs", _OF_OPERATORS, 50),
    ("regressions", _OF_OPERATORS, 200),
    ("builds", _OF_OPERATORS, 200),
    ("series", _OF_OPERATORS, 200),
    ("variants", _OF_OPERATORS, 50),
    ("cases", _OF_OPERATORS, 50),
    ("operators", _OF_REPOSITORY, 50),
    ("submissions", _OF_REPOSITORY, 200),
    ("schedules", _OF_REPOSITORY, 50),
    ("saved_views", _OF_REPOSITORY, 50),
    ("judgements", _OF_REPOSITORY, 50),
    ("patches", _OF_REPOSITORY, 50),
    ("commits", _OF_REPOSITORY, 200),
)
"""Tables in the order they are emptied, which rows of them, and how many at once."""


@dataclass(frozen=True, slots=True)
class DeletedRepository:
    """A repository whose rows are still to be deleted."""

    id: int
    url: str


def mark_deleted(s: Session, repository_id: int) -> None:
    """Makes a repository disappear: its name is free, its schedules stop. `delete_some` deletes its rows.

    NotFoundError when somebody else did it a moment before.
    """
    sql = """
    UPDATE repositories SET deleted_at = now(), name = name || ' (deleted ' || id || ')',
           webhook_secret = NULL, status_url = NULL, status_token = NULL
    WHERE id = :id AND deleted_at IS NULL RETURNING id
    """
    if s.execute(text(sql), {"id": repository_id}).one_or_none() is None:
        raise NotFoundError("the repository was deleted already")
    s.execute(text(f"UPDATE schedules SET is_enabled = false WHERE {_OF_REPOSITORY}"), {"id": repository_id})


def list_deleted(s: Session) -> list[DeletedRepository]:
    """Repositories that are being deleted, the first one first."""
    sql = "SELECT id, url FROM repositories WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT 100"
    return [DeletedRepository(row.id, row.url) for row in s.execute(text(sql))]


def cancel_some(s: Session, repository_id: int, limit: int = 50) -> int:
    """Cancels jobs of the repository that have not ended; returns how many."""
    open_states = f"('{JobState.QUEUED}', '{JobState.RUNNING}')"
    sql = f"SELECT id FROM jobs WHERE {_OF_OPERATORS} AND state IN {open_states} ORDER BY id LIMIT :limit"
    return sum(cancel_job(s, row.id) for row in s.execute(text(sql), {"id": repository_id, "limit": limit}).all())


def delete_some(s: Session, repository_id: int) -> bool:
    """Deletes one batch of a repository that is marked, and at last its own row; False when nothing is left."""
    values = {"id": repository_id}
    for table, condition, limit in _STEPS:
        rows = f"SELECT id FROM {table} WHERE {condition} LIMIT {limit}"
        # As an array, which is looked up by key: the planner could choose to read the whole table for a join.
        deleted = s.execute(text(f"DELETE FROM {table} WHERE id = ANY(ARRAY({rows})) RETURNING id"), values)
        if deleted.first() is not None:
            return True
    row = s.execute(text("DELETE FROM repositories WHERE id = :id AND deleted_at IS NOT NULL RETURNING id"), values)
    return row.first() is not None


def is_url_used(s: Session, url: str) -> bool:
    """Whether a repository that is not being deleted has this address."""
    sql = "SELECT EXISTS (SELECT FROM repositories WHERE url = :url AND deleted_at IS NULL)"
    return bool(s.scalar(text(sql), {"url": url}))


@dataclass(frozen=True, slots=True)
class DeletionOrder:
    """A submission, or commits, whose rows are still to be deleted."""

    id: int
    repository_id: int
    submission_id: int | None
    commit_ids: list[int]


_OPEN_JOBS = "state IN ('queued', 'running')"
_OF_SUBMISSION = "submission_id = :submission"
_OF_COMMITS = "(commit_id = ANY(:commits) OR base_commit_id = ANY(:commits))"


def order_submission_deletion(s: Session, submission_id: int) -> None:
    """Has a submission deleted with its results; StateError where a verdict rests on them."""
    sql = "SELECT repository_id FROM submissions WHERE id = :id"
    repository_id = s.scalar(text(sql), {"id": submission_id})
    if repository_id is None:
        raise NotFoundError(f"there is no submission {submission_id}")
    judged = "SELECT EXISTS (SELECT FROM jobs JOIN trials ON trials.job_id = jobs.id WHERE submission_id = :id)"
    if s.scalar(text(judged), {"id": submission_id}):
        raise StateError(
            f"verdicts rest on submission {submission_id}; strike out its results instead, so that they are measured "
            "again"
        )
    _order_submissions(s, repository_id, [submission_id])


def order_branch_deletion(s: Session, repository_id: int, name: str) -> None:
    """Has the commits of a branch deleted that no other branch holds, with their results.

    StateError for the watched branch.
    """
    sql = "SELECT id, is_watched FROM branches WHERE repository_id = :id AND name = :name"
    branch = s.execute(text(sql), {"id": repository_id, "name": name}).one_or_none()
    if branch is None:
        raise NotFoundError(f"there is no branch {name!r} with submitted commits")
    if branch.is_watched:
        raise StateError(f"{name!r} is the watched branch; watch another one first, or delete the repository")
    own = """
    SELECT commit_id FROM branch_commits AS own WHERE branch_id = :branch
      AND NOT EXISTS (SELECT FROM branch_commits AS other WHERE other.commit_id = own.commit_id
                      AND other.branch_id <> own.branch_id)
    """
    commits = list(s.scalars(text(own), {"branch": branch.id}))
    order = "INSERT INTO deletions (repository_id, commit_ids) VALUES (:id, to_jsonb(CAST(:commits AS bigint[])))"
    s.execute(text(order), {"id": repository_id, "commits": commits})
    # Submissions that measured nothing else would be empty.
    emptied = f"""
    SELECT DISTINCT submission_id FROM jobs AS own WHERE {_OF_COMMITS}
      AND NOT EXISTS (SELECT FROM jobs WHERE jobs.submission_id = own.submission_id
                      AND NOT coalesce(commit_id = ANY(:commits), false)
                      AND NOT coalesce(base_commit_id = ANY(:commits), false))
    """
    _order_submissions(s, repository_id, list(s.scalars(text(emptied), {"commits": commits})))
    s.execute(text("DELETE FROM branches WHERE id = :branch"), {"branch": branch.id})
    # A branch that git still has comes back with its next submission.
    s.execute(text("UPDATE repositories SET branches_key = NULL WHERE id = :id"), {"id": repository_id})


def _order_submissions(s: Session, repository_id: int, submission_ids: list[int]) -> None:
    sql = """
    INSERT INTO deletions (repository_id, submission_id) SELECT :id, unnest(CAST(:submissions AS bigint[]))
    ON CONFLICT DO NOTHING
    """
    s.execute(text(sql), {"id": repository_id, "submissions": submission_ids})


def list_orders(s: Session) -> list[DeletionOrder]:
    """Deletions under way, the first one first."""
    sql = "SELECT id, repository_id, submission_id, commit_ids FROM deletions ORDER BY id LIMIT 100"
    return [DeletionOrder(*row) for row in s.execute(text(sql))]


def follow_order(s: Session, order: DeletionOrder) -> bool:
    """Deletes one batch of a submission or of commits, and at last the order; False when nothing is left."""
    values = {"submission": order.submission_id, "commits": order.commit_ids, "id": order.id}
    jobs = _OF_SUBMISSION if order.submission_id is not None else _OF_COMMITS
    waiting = s.scalars(text(f"SELECT id FROM jobs WHERE {jobs} AND {_OPEN_JOBS} ORDER BY id LIMIT 50"), values).all()
    if waiting:
        return sum(cancel_job(s, job_id) for job_id in waiting) > 0
    if _delete_results(s, jobs, values):
        return True
    steps = [("jobs", jobs, 50)]
    if order.submission_id is not None:
        steps.append(("submissions", "id = :submission", 1))
    else:
        ends = "(base_commit_id = ANY(:commits) OR head_commit_id = ANY(:commits))"
        steps += [("regressions", ends, 200), ("builds", "commit_id = ANY(:commits)", 200)]
        steps.append(("commits", "id = ANY(:commits)", 100))
    steps.append(("deletions", "id = :id", 1))
    for table, condition, limit in steps:
        rows = f"SELECT id FROM {table} WHERE {condition} LIMIT {limit}"
        if s.execute(text(f"DELETE FROM {table} WHERE id = ANY(ARRAY({rows})) RETURNING id"), values).first():
            return True
    return False


def _delete_results(s: Session, jobs: str, values: dict[str, Any]) -> bool:
    """Deletes a batch of results of these jobs, and has what was counted from them counted again."""
    sql = f"""
    DELETE FROM all_results WHERE id = ANY(ARRAY(
        SELECT all_results.id FROM all_results JOIN runs ON runs.id = run_id
        WHERE runs.job_id IN (SELECT id FROM jobs WHERE {jobs}) LIMIT 500))
    RETURNING commit_id, operator_id, device_id
    """
    rows = s.execute(text(sql), values).all()
    if rows:
        forget_all_counts(s, sorted({row.commit_id for row in rows}))
        for operator_id, device_id in sorted({(row.operator_id, row.device_id) for row in rows}):
            s.execute(text("SELECT id FROM operators WHERE id = :id FOR KEY SHARE"), {"id": operator_id})
            forget_trends(s, operator_id, device_id)
    return bool(rows)
