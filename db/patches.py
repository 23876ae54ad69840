"""Writes patches of working trees, and what their jobs found, apart from everything that enters history."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from warpwatch.contract.codec import to_json
from warpwatch.contract.outcome import Outcome
from warpwatch.db.models import CommitRecord, PatchOutcomeRecord, PatchRecord
from warpwatch.db.registry import NewCommit, record_commits

_EXPIRED = """
SELECT id FROM patches WHERE used_at < now() - make_interval(secs => :seconds)
  AND NOT EXISTS (SELECT FROM commits JOIN jobs ON jobs.commit_id = commits.id
                  WHERE commits.patch_id = patches.id AND jobs.state IN ('queued', 'running'))
ORDER BY used_at LIMIT :limit
"""
# A submission of a patch measures its commit alone, so it goes as a whole.
_DELETE_SUBMISSIONS = """
DELETE FROM submissions WHERE id = ANY(ARRAY(
    SELECT jobs.submission_id FROM commits JOIN jobs ON jobs.commit_id = commits.id
    WHERE commits.patch_id = ANY(:ids)))
"""


@dataclass(frozen=True, slots=True)
class NewPatch:
    """A patch that applies, and the commit that it makes."""

    repository_id: int
    base_sha: str
    content: bytes
    commit: NewCommit


def store_patch(s: Session, new: NewPatch) -> int:
    """The id of the patch; one that makes the same commit is stored once."""
    key = {"repository_id": new.repository_id, "sha": new.commit.sha}
    row = insert(PatchRecord).values(**key, base_sha=new.base_sha, content=new.content)
    patch_id = s.scalars(
        row.on_conflict_do_update(index_elements=[*key], set_={"used_at": func.now()}).returning(PatchRecord.id)
    ).one()
    commit_id = record_commits(s, new.repository_id, [new.commit])[new.commit.sha]
    s.execute(update(CommitRecord).where(CommitRecord.id == commit_id).values(patch_id=patch_id))
    return patch_id


def touch_patch(s: Session, patch_id: int) -> None:
    """Notes that a patch is used, so that it is kept for as long again."""
    s.execute(update(PatchRecord).where(PatchRecord.id == patch_id).values(used_at=func.now()))


def delete_expired(s: Session, seconds: float, limit: int = 20) -> int:
    """Deletes patches that nobody used for so long, with their jobs and outcomes; how many these are."""
    ids = list(s.scalars(text(_EXPIRED), {"seconds": seconds, "limit": limit}))
    if ids:
        s.execute(text(_DELETE_SUBMISSIONS), {"ids": ids})
        s.execute(text("DELETE FROM patches WHERE id = ANY(:ids)"), {"ids": ids})
    return len(ids)


def is_patch(s: Session, commit_id: int) -> bool:
    """Whether a patch makes the commit."""
    return s.scalar(select(CommitRecord.patch_id).where(CommitRecord.id == commit_id)) is not None


def store_outcome(s: Session, job_id: int, outcome: Outcome) -> None:
    """Writes what a job of a patch found, in place of an earlier run's outcome."""
    values = to_json(replace(outcome, catalogue=None, base_catalogue=None, peaks=None))
    row = insert(PatchOutcomeRecord).values(job_id=job_id, outcome=values)
    s.execute(row.on_conflict_do_update(index_elements=["job_id"], set_={"outcome": row.excluded.outcome}))
