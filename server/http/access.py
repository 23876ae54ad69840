"""Who asks, what they may do, and the trail of what they changed."""

from __future__ import annotations

import hashlib
import logging
import secrets
from typing import Annotated, NamedTuple

from fastapi import Depends, Request
from starlette.types import Scope

from warpwatch.contract.words import TokenScope
from warpwatch.db.access import (
    NewAuditEntry,
    TokenHolder,
    end_session,
    is_session_ended,
    record_audit,
    use_token,
)
from warpwatch.db.accounts import use_account
from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError
from warpwatch.logs import REQUEST_ID
from warpwatch.server.http.metrics import route_template
from warpwatch.server.http.permissions import ROLE_SCOPES, weaker
from warpwatch.server.http.problems import Problem
from warpwatch.server.http.sessions import SESSION_SECONDS, SessionSubject

TOKEN_PREFIX = "wwp_"  # noqa: S105 - what tokens begin with is no secret.
"""Prefix of personal tokens. The prefix tells personal tokens from other tokens, also for secret scanners."""
INVITATION_PREFIX = "wwi_"
_log = logging.getLogger(__name__)


class Caller(NamedTuple):
    """Who asks. name: of an account, or of a way to come in. account_id: None where there is no account. repositories:
    those that a CI job may submit for; None for people, who see all."""

    name: str
    scope: TokenScope
    account_id: int | None = None
    repositories: frozenset[str] | None = None


ADMINISTRATOR = Caller("token", TokenScope.ADMINISTER)
"""Who shows WARPWATCH_TOKEN, or logged in with it."""
LOCAL = Caller("local", TokenScope.ADMINISTER)
"""Who asks a server that wants no token."""
NOBODY = Caller("nobody", TokenScope.READ)
"""Who sends a request that needs no token to a server that wants one for all others."""
PUBLIC = Caller("public", TokenScope.READ)
"""Who shows nothing, and reads what permissions.PUBLIC names."""
_RESERVED_NAMES = frozenset({ADMINISTRATOR.name, LOCAL.name, NOBODY.name, PUBLIC.name, "webhook"})
CI_PREFIX = "ci "
"""Prefix of the names of CI jobs."""


def is_reserved(name: str) -> bool:
    """Whether a name stands for another caller in the trail, so that no account may have it."""
    return name.lower() in _RESERVED_NAMES or name.lower().startswith(CI_PREFIX)


def caller_of(request: Request) -> Caller:
    """Who sent a request, as RequestGuard found out."""
    caller: Caller = request.state.caller
    return caller


def require_repository(caller: Caller, name: str) -> None:
    """A 403 where a CI job asks for something in a repository that does not trust it."""
    if caller.repositories is not None and name not in caller.repositories:
        known = ", ".join(sorted(caller.repositories))
        raise Problem(403, f"{caller.name} may submit for {known} and not for {name!r}; trust it in that repository")


Asking = Annotated[Caller, Depends(caller_of)]


def may(caller: Caller, required: TokenScope) -> bool:
    return weaker(caller.scope, required) is required


def new_token() -> str:
    """A personal token, which is shown once."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def new_invitation() -> str:
    """Creates the secret at the end of an invitation link."""
    return INVITATION_PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    """Hash of a token, stored instead of the token. A token is random, so a plain hash reveals nothing."""
    return hashlib.sha256(token.strip().encode()).hexdigest()


def find_holder(database: Database, token: str) -> TokenHolder | None:
    """The holder of a valid personal token. The database is not asked for what cannot be one."""
    if not token.strip().startswith(TOKEN_PREFIX):
        return None
    with database.session() as session:
        return use_token(session, token_hash=hash_of(token))


def caller_with(holder: TokenHolder) -> Caller:
    """Whom a personal token lets in: it never does more than the role of its account allows."""
    scope = holder.scope if holder.role is None else weaker(holder.scope, ROLE_SCOPES[holder.role])
    return Caller(holder.person, scope, holder.account_id)


def find_session_caller(database: Database, subject: SessionSubject) -> Caller | None:
    """Who logged in to a session; None where it was logged out, or its token or account is not valid any more."""
    with database.session() as session:
        if is_session_ended(session, subject.name):
            return None
        if subject.account_id is not None:
            account = use_account(session, subject.account_id)
            return Caller(account.name, ROLE_SCOPES[account.role], account.id) if account is not None else None
        if subject.token_id is None:
            return ADMINISTRATOR
        holder = use_token(session, token_id=subject.token_id)
    return caller_with(holder) if holder is not None else None


def log_out(database: Database, subject: SessionSubject) -> None:
    """Ends a session on all servers."""
    with database.session() as session:
        end_session(session, subject.name, SESSION_SECONDS)


def keep_trail(database: Database, caller: str, scope: Scope, status: int) -> None:
    """Records a request that changed something. The change itself is made, so a failure is only logged."""
    entry = NewAuditEntry(caller, scope["method"], route_template(scope), scope["path"], status, REQUEST_ID.get())
    try:
        with database.session() as session:
            record_audit(session, entry)
    except EngineError as error:
        _log.error("the trail lacks %s %s by %s: %s", entry.method, entry.path, caller, error)
