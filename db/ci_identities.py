"""CI jobs that may submit for a repository."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.access import USE_SECONDS
from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError
from warpwatch.db.reads.query import Page, fetch, fetch_page, fetch_scalar

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


@dataclass(frozen=True, slots=True)
class NewCiIdentity:
    """Whose ID tokens count; see db.models.CiIdentityRecord."""

    issuer: str
    audience: str
    subject: str


def add_ci_identity(s: Session, repository_id: int, new: NewCiIdentity) -> int:
    """The id of the identity, also of one that was added before."""
    sql = """
    INSERT INTO ci_identities (repository_id, issuer, audience, subject)
    VALUES (:repository_id, :issuer, :audience, :subject)
    ON CONFLICT (repository_id, issuer, audience, subject) DO UPDATE SET issuer = excluded.issuer RETURNING id
    """
    values = {name: storable(getattr(new, name)) for name in NewCiIdentity.__slots__}
    return int(s.execute(text(sql), {"repository_id": repository_id, **values}).scalar_one())


def remove_ci_identity(s: Session, repository_id: int, identity_id: int) -> None:
    """From now on its tokens open nothing; NotFoundError where the repository has none of that id."""
    sql = "DELETE FROM ci_identities WHERE id = :id AND repository_id = :repository_id RETURNING id"
    if s.execute(text(sql), {"id": identity_id, "repository_id": repository_id}).one_or_none() is None:
        raise NotFoundError(f"there is no CI identity {identity_id} of this repository")


def note_ci_use(s: Session, identity_ids: list[int]) -> None:
    """Notes that identities were used, at most once in USE_SECONDS."""
    sql = """
    UPDATE ci_identities SET last_used_at = now() WHERE id = ANY(:ids)
    AND (last_used_at IS NULL OR last_used_at < now() - make_interval(secs => :seconds))
    """
    s.execute(text(sql), {"ids": identity_ids, "seconds": USE_SECONDS})
