"""Makes accounts and invites people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel, ConfigDict, Field, field_validator

from warpwatch.contract.words import AccountRole
from warpwatch.db.access import add_token
from warpwatch.db.accounts import AccountHolder, accept_invitation, add_account, invite
from warpwatch.db.reads.query import Session
from warpwatch.server.http.access import hash_of, is_reserved, new_invitation, new_token
from warpwatch.server.http.permissions import ROLE_SCOPES
from warpwatch.server.intake.triage import MAX_NAME
from warpwatch.settings import Settings

INVITATION_DAYS = 7
SIGN_IN_DAYS = 365
"""How long the token is valid that a person signs in with after an invitation."""


class AccountRequest(BaseModel):
    """A person who may sign in. name: the e-mail address where an OpenID provider signs people in."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    name: str = Field(min_length=1, max_length=MAX_NAME, examples=["ann@acme.example"])
    role: AccountRole = AccountRole.VIEWER

    @field_validator("name")
    @classmethod
    def refuse_reserved(cls, name: str) -> str:
        if is_reserved(name) or not name.isprintable():
            raise ValueError(f"{name!r} cannot be the name of an account; choose another one")
        return name


class AccountChange(BaseModel):
    """Change of an account. Both fields take effect at once, for open sessions and tokens as well."""

    model_config = ConfigDict(extra="forbid")
    role: AccountRole | None = None
    is_disabled: bool | None = None


@dataclass(frozen=True, slots=True)
class Invitation:
    """A link that signs its reader in once. link: shown this once; only a hash of it is kept."""

    account_id: int
    link: str
    expires_at: datetime


def make_account(session: Session, settings: Settings, body: AccountRequest) -> Invitation:
    """A new account and its invitation; StateError when the name is taken."""
    return renew_invitation(session, settings, add_account(session, body.name, body.role))


def renew_invitation(session: Session, settings: Settings, account_id: int) -> Invitation:
    """Another link for an account; the one before it ends."""
    invitation = new_invitation()
    expires_at = datetime.now(UTC) + timedelta(days=INVITATION_DAYS)
    invite(session, account_id, hash_of(invitation), expires_at)
    return Invitation(account_id, f"{settings.server_url}/login/invitation?token={invitation}", expires_at)


def accept(session: Session, invitation: str) -> tuple[AccountHolder, str] | None:
    """Whose invitation it was, and the token that signs this person in from now on."""
    account = accept_invitation(session, hash_of(invitation))
    if account is None:
        return None
    token = new_token()
    expires_at = datetime.now(UTC) + timedelta(days=SIGN_IN_DAYS)
    add_token(session, account.id, account.name, "sign-in", hash_of(token), ROLE_SCOPES[account.role], expires_at)
    return account, token
