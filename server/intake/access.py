"""Checks and makes personal tokens."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel, ConfigDict, Field

from warpwatch.contract.words import TokenScope
from warpwatch.db.access import add_token
from warpwatch.db.reads.query import Session
from warpwatch.server.http.access import hash_of, new_token
from warpwatch.server.intake.triage import MAX_NAME


class TokenRequest(BaseModel):
    """A token for a person. days: how long it is valid; null for as long as it is not revoked."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    person: str = Field(min_length=1, max_length=MAX_NAME, examples=["ann"])
    purpose: str = Field(default="", max_length=200, examples=["laptop"])
    scope: TokenScope = TokenScope.READ
    days: int | None = Field(default=90, ge=1, le=3650)


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token. token: shown this once; only a hash of it is kept."""

    id: int
    token: str


def issue_token(session: Session, body: TokenRequest) -> IssuedToken:
    token = new_token()
    expires_at = datetime.now(UTC) + timedelta(days=body.days) if body.days is not None else None
    return IssuedToken(add_token(session, body.person, body.purpose, hash_of(token), body.scope, expires_at), token)
