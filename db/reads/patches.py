"""Reads patches of working trees and what their jobs found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from warpwatch.db.reads.query import Session, fetch, fetch_one, fetch_scalar


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
    """What a job of a patch found, as JSON of contract.outcome.Outcome; None before its end."""

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
