"""Uncommitted changes that somebody sent to be measured: they have results of their own and enter no history."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, Session, mapped_column

from warpwatch.contract.catalogue import CommitInfo
from warpwatch.contract.codec import to_json
from warpwatch.contract.outcome import Outcome
from warpwatch.db.models import CommitRecord
from warpwatch.db.models.base import Base, created
from warpwatch.db.reads.query import fetch, fetch_one, fetch_scalar
from warpwatch.db.registry import record_commits


class PatchRecord(Base):
    """A patch, once for each content. Its commit, its jobs and their outcomes go with it."""

    __tablename__ = "patches"
    __table_args__ = (UniqueConstraint("repository_id", "sha"), Index(None, "used_at"))
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    sha: Mapped[str]
    """The commit that it makes on its base, which no branch holds; see warpwatch.patches."""
    base_sha: Mapped[str]
    content: Mapped[bytes]
    created_at: Mapped[datetime] = created()
    used_at: Mapped[datetime] = created()
    """When it was last sent or submitted; it is deleted some days later."""


class PatchOutcomeRecord(Base):
    """Outcome of a job of a patch, apart from all results: contract.outcome.Outcome as JSON, without catalogues."""

    __tablename__ = "patch_outcomes"
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    outcome: Mapped[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class PatchRow:
    """A stored patch: the commit that it makes, and what it is based on."""

    id: int
    sha: str
    base_sha: str
    created_at: datetime
    used_at: datetime


def list_patches(session: Session, repository_id: int, shas: list[str]) -> list[PatchRow]:
    """Those of these commits that patches make."""
    sql = """
    SELECT id, sha, base_sha, created_at, used_at FROM patches
    WHERE repository_id = :repository_id AND sha = ANY(:shas) ORDER BY id
    """
    return fetch(session, PatchRow, sql, repository_id=repository_id, shas=shas)


def find_patch(session: Session, repository_id: int, sha: str) -> PatchRow | None:
    return next(iter(list_patches(session, repository_id, [sha])), None)


def read_content(session: Session, patch_id: int) -> bytes:
    return bytes(fetch_scalar(session, "SELECT content FROM patches WHERE id = :id", id=patch_id))


@dataclass(frozen=True, slots=True)
class PatchJobOutcome:
    """Outcome of a job of a patch, as JSON of contract.outcome.Outcome; None before the job has ended."""

    job_id: int
    outcome: dict[str, Any] | None


def read_outcome(session: Session, job_id: int) -> PatchJobOutcome | None:
    """None for a job that is not of a patch."""
    sql = """
    SELECT jobs.id AS job_id, outcome FROM jobs JOIN commits ON commits.id = jobs.commit_id
    LEFT JOIN patch_outcomes ON patch_outcomes.job_id = jobs.id
    WHERE jobs.id = :job_id AND commits.patch_id IS NOT NULL
    """
    return fetch_one(session, PatchJobOutcome, sql, job_id=job_id)


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
    commit: CommitInfo


def store_patch(s: Session, new: NewPatch) -> None:
    """Stores the patch for its commit; a patch that makes the same commit is stored once."""
    key = {"repository_id": new.repository_id, "sha": new.commit.sha}
    row = insert(PatchRecord).values(**key, base_sha=new.base_sha, content=new.content)
    patch_id = s.scalars(
        row.on_conflict_do_update(index_elements=[*key], set_={"used_at": func.now()}).returning(PatchRecord.id)
    ).one()
    commit_id = record_commits(s, new.repository_id, [new.commit])[new.commit.sha]
    s.execute(update(CommitRecord).where(CommitRecord.id == commit_id).values(patch_id=patch_id))


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
