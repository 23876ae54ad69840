"""Checks and makes personal tokens."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel, ConfigDict, Field

from warpwatch.contract.words import AccountRole, TokenScope
from warpwatch.db.access import add_token
from warpwatch.db.accounts import AccountHolder, ensure_account, use_account
from warpwatch.db.reads.query import Session
from warpwatch.server.http.access import Caller, hash_of, is_reserved, may, new_token
from warpwatch.server.http.permissions import ROLE_SCOPES, SCOPES, weaker
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.server.intake.triage import MAX_NAME


class TokenRequest(BaseModel):
    """A token for an account. days: how long it is valid; null for as long as it is not revoked."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    person: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_NAME,
        examples=["ann"],
        description="Name of the account; default: your own. Only administrators name others. An account that does not "
        "exist is made, with the role that fits the scope.",
    )
    purpose: str = Field(default="", max_length=200, examples=["laptop"])
    scope: TokenScope = Field(default=TokenScope.READ, description="No more than the role of the account allows.")
    days: int | None = Field(default=90, ge=1, le=3650)


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token. token: shown this once; only a hash of it is kept."""

    id: int
    token: str


def issue_token(session: Session, caller: Caller, body: TokenRequest) -> IssuedToken:
    """A token for the caller, or for anybody where an administrator asks; Problem names every field at fault."""
    account = _account(session, caller, body)
    allowed = ROLE_SCOPES[account.role]
    if account.id == caller.account_id:
        # A token that may do little makes none that may do more.
        allowed = weaker(allowed, caller.scope)
    if SCOPES.index(body.scope) > SCOPES.index(allowed):
        remedy = f"choose {allowed}" + (" or less" if allowed is not TokenScope.READ else "")
        message = f"{account.name} may {allowed} and not {body.scope}"
        raise _refusal(422, FieldError(field="scope", message=message, remedy=f"{remedy}, or change the role first"))
    token = new_token()
    expires_at = datetime.now(UTC) + timedelta(days=body.days) if body.days is not None else None
    new_id = add_token(session, account.id, account.name, body.purpose, hash_of(token), body.scope, expires_at)
    return IssuedToken(new_id, token)


def _account(session: Session, caller: Caller, body: TokenRequest) -> AccountHolder:
    """Whose token it will be."""
    own = use_account(session, caller.account_id) if caller.account_id is not None else None
    if own is not None and body.person in (None, own.name):
        return own
    if body.person is None:
        raise _refusal(422, FieldError(field="person", message="you have no account", remedy="name one"))
    if not may(caller, TokenScope.ADMINISTER):
        raise _refusal(403, FieldError(field="person", message="others' tokens are made by administrators"))
    if is_reserved(body.person):
        raise _refusal(422, FieldError(field="person", message="no account has this name", remedy="choose another one"))
    role = list(AccountRole)[SCOPES.index(body.scope)]
    return ensure_account(session, body.person, role)


def _refusal(status: int, error: FieldError) -> Problem:
    return Problem(status, "no token was made", [error])
