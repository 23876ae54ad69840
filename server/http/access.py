"""Who asks, what they may do, and the trail of what they changed."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from typing import NamedTuple

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
from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError
from warpwatch.logs import REQUEST_ID
from warpwatch.server.http.metrics import route_template
from warpwatch.server.http.sessions import SESSION_SECONDS, SessionSubject

TOKEN_PREFIX = "wwp_"  # noqa: S105 - what tokens begin with is no secret.
"""What personal tokens begin with, so that they are told from others, also by scanners of secrets."""
_ORDER = list(TokenScope)
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_ADMINISTRATION = re.compile(r"/(tokens|audit)(/|$)")
_READING = re.compile(r"/(submissions|repositories/[^/]+/retention)/preview$")
_SUBMITTING = re.compile(
    r"/(submissions(/new|/\d+/(cancel|retry))?|jobs/\d+/(cancel|retry)|patches|imports|proofs|schedules/\d+/run)$"
)
_TRIAGING = re.compile(
    r"/(regressions/.+|triage|watches(/.+)?|views(/.+)?|series/\d+/mute|muted/.+|jobs/\d+/strike-out(/undo)?)$"
)
_log = logging.getLogger(__name__)


class Caller(NamedTuple):
    """Who asks. name: of a person, or of a way to come in."""

    name: str
    scope: TokenScope


ADMINISTRATOR = Caller("token", TokenScope.ADMINISTER)
"""Who shows WARPWATCH_TOKEN, or logged in with it."""


def required_scope(method: str, path: str) -> TokenScope:
    """What a request needs: the pages and the API below /api/v1 have the same paths. What is not known needs most."""
    path = path.removeprefix("/api/v1")
    if _ADMINISTRATION.match(path):
        return TokenScope.ADMINISTER
    # Workers show keys of their own, and what they do is kept with their runs.
    if path.startswith("/worker/"):
        return TokenScope.READ
    if method in SAFE_METHODS or _READING.fullmatch(path) or path in ("/login", "/logout"):
        return TokenScope.READ
    if method == "POST" and _SUBMITTING.fullmatch(path):
        return TokenScope.SUBMIT
    return TokenScope.TRIAGE if _TRIAGING.fullmatch(path) else TokenScope.ADMINISTER


def may(caller: Caller, required: TokenScope) -> bool:
    return _ORDER.index(caller.scope) >= _ORDER.index(required)


def new_token() -> str:
    """A personal token, which is shown once."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    """What is kept of a token: it is random, so a plain hash tells nothing."""
    return hashlib.sha256(token.strip().encode()).hexdigest()


def find_holder(database: Database, token: str) -> TokenHolder | None:
    """The holder of a valid personal token."""
    with database.session() as session:
        return use_token(session, token_hash=hash_of(token))


def find_session_caller(database: Database, subject: SessionSubject) -> Caller | None:
    """Who logged in to a session; None where it was logged out, or its token is not valid any more."""
    with database.session() as session:
        if is_session_ended(session, subject.name):
            return None
        if subject.token_id is None:
            return ADMINISTRATOR
        holder = use_token(session, token_id=subject.token_id)
    return Caller(holder.person, holder.scope) if holder is not None else None


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
