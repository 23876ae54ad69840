"""Reads which CI jobs may submit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from warpwatch.db.reads.query import Page, Session, fetch, fetch_page, fetch_scalar

_COLUMNS = """
identities.id, repositories.name AS repository, issuer, audience, subject, identities.created_at,
identities.last_used_at
FROM ci_identities AS identities JOIN repositories ON repositories.id = repository_id
"""


@dataclass(frozen=True, slots=True)
class CiIdentityRow:
    """CI jobs that may submit for a repository with the ID token of their code host. subject: whom the token must name;
    `*` stands for anything."""

    id: int
    repository: str
    issuer: str
    audience: str
    subject: str
    created_at: datetime
    last_used_at: datetime | None


def list_ci_identities(
    session: Session, repository_id: int, before: int | None = None, limit: int = 50
) -> Page[CiIdentityRow]:
    """Those of a repository, newest first."""
    sql = f"""
    SELECT {_COLUMNS} WHERE repository_id = :repository_id
    AND (CAST(:before AS bigint) IS NULL OR identities.id < :before) ORDER BY identities.id DESC LIMIT :limit
    """
    return fetch_page(session, CiIdentityRow, sql, limit, before=before, repository_id=repository_id)


def find_ci_identities(session: Session, issuer: str) -> list[CiIdentityRow]:
    """All whose tokens `issuer` signs."""
    sql = f"SELECT {_COLUMNS} WHERE issuer = :issuer AND deleted_at IS NULL ORDER BY identities.id"
    return fetch(session, CiIdentityRow, sql, issuer=issuer)


def find_repository_of(session: Session, submission_id: int) -> str | None:
    """The name of the repository of a submission."""
    sql = """
    SELECT name FROM submissions JOIN repositories ON repositories.id = repository_id WHERE submissions.id = :id
    """
    name: str | None = fetch_scalar(session, sql, id=submission_id)
    return name
