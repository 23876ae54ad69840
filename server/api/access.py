"""Personal tokens, and who changed what."""

from __future__ import annotations

from fastapi import APIRouter

from warpwatch.contract.words import TokenScope
from warpwatch.db.access import revoke_token
from warpwatch.db.reads.access import AccessTokenRow, AuditEntry, list_audit, list_tokens
from warpwatch.db.reads.query import Page
from warpwatch.server.http.access import Asking, Caller, may
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Before, Db, Limit
from warpwatch.server.intake.access import IssuedToken, TokenRequest, issue_token

router = APIRouter(tags=["access"])


def visible_account(caller: Caller) -> int | None:
    """Whose tokens a caller sees and revokes: administrators those of all, others their own."""
    if may(caller, TokenScope.ADMINISTER):
        return None
    return caller.account_id if caller.account_id is not None else 0


@router.get("/tokens", responses=documented(422))
def get_tokens(session: Db, caller: Asking, before: Before = None, limit: Limit = 50) -> Page[AccessTokenRow]:
    """Your personal tokens, newest first, with their last use; administrators see everybody's. Tokens themselves are
    never shown again."""
    return list_tokens(session, visible_account(caller), before, limit)


@router.post("/tokens", status_code=201, responses=documented(403, 422))
def post_token(session: Db, caller: Asking, body: TokenRequest) -> IssuedToken:
    """Make a token for your account, or as an administrator for any. It is sent like `WARPWATCH_TOKEN`, or typed at
    /login, and asked for only where that is set. Scopes: read, submit, triage, administer; each includes those before
    it."""
    return issue_token(session, caller, body)


@router.delete("/tokens/{token_id}", status_code=204, responses=documented(404, 422))
def delete_token(session: Db, caller: Asking, token_id: int) -> None:
    """Revoke one of your tokens, as an administrator any, and the sessions that it opened, at once on all servers."""
    revoke_token(session, token_id, visible_account(caller))


@router.get("/audit", responses=documented(422))
def get_audit(session: Db, before: Before = None, limit: Limit = 50) -> Page[AuditEntry]:
    """Requests that changed something, newest first: who, what and when."""
    return list_audit(session, before, limit)
