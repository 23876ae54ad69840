"""Writes which CI jobs may submit."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.access import USE_SECONDS
from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError


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
