"""Tokens and the audit log: their pages and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData

from warpwatch.contract.words import AccountRole, TokenScope
from warpwatch.db.access import AccessTokenRow, AuditEntry, add_token, list_audit, list_tokens, revoke_token
from warpwatch.db.accounts import AccountHolder, ensure_account, use_account
from warpwatch.db.reads.query import Page, Session
from warpwatch.server.http.access import Asking, Caller, hash_of, is_reserved, may, new_token
from warpwatch.server.http.permissions import ROLE_SCOPES, SCOPES, weaker
from warpwatch.server.http.problems import FieldError, Problem, documented
from warpwatch.server.http.service import Before, Db, Limit
from warpwatch.server.intake.triage import MAX_NAME
from warpwatch.server.web.forms import form_errors, form_of
from warpwatch.server.web.render import PageScope, Scope
from warpwatch.server.web.tabs import PeopleTab, people_tab


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


router = APIRouter()
BLANK: dict[str, Any] = {"purpose": "", "scope": TokenScope.READ, "days": "90"}


@router.post("/tokens")
def add(page: PageScope, caller: Asking, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Makes a token and shows it once; shows the form again with a message per invalid field."""
    entered: dict[str, Any] = {name: str(value).strip() for name, value in form.items()}
    given = {"days": entered.get("days") or None, "person": entered.get("person") or None}
    try:
        issued = issue_token(page.session, caller, TokenRequest.model_validate(entered | given))
    except (ValidationError, Problem) as error:
        return show_tokens(page, caller, entered, form_errors(error))
    return show_tokens(page, caller, issued=issued)


@router.post("/tokens/{token_id}/revoke")
def revoke(page: PageScope, caller: Asking, token_id: int) -> Response:
    revoke_token(page.session, token_id, visible_account(caller))
    return RedirectResponse(people_tab(PeopleTab.TOKENS), 303)


def show_audit(page: Scope, before: int | None = None) -> Response:
    """Who changed what, newest first."""
    return page.page("settings/audit.html", json="/audit", entries=list_audit(page.session, before), before=before)


def show_tokens(
    page: Scope,
    caller: Caller,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    before: int | None = None,
    issued: IssuedToken | None = None,
) -> Response:
    """Every token that the caller may see, newest first, and the form."""
    is_administrator = may(caller, TokenScope.ADMINISTER)
    return page.page(
        "settings/tokens.html",
        json="/tokens",
        status=422 if errors else 200,
        tokens=list_tokens(page.session, visible_account(caller), before),
        before=before,
        scope_names=[(scope, scope) for scope in TokenScope if may(caller, scope)],
        caller=caller,
        is_administrator=is_administrator,
        hidden_tabs=() if is_administrator else (PeopleTab.USERS, PeopleTab.AUDIT),
        entered=BLANK | {"person": caller.name if caller.account_id else ""} | (entered or {}),
        errors=errors or {},
        issued=issued,
        is_open=page.request.app.state.sessions is None,
    )


api = APIRouter(tags=["access"])


def visible_account(caller: Caller) -> int | None:
    """Whose tokens a caller sees and revokes: administrators those of all, others their own."""
    if may(caller, TokenScope.ADMINISTER):
        return None
    return caller.account_id if caller.account_id is not None else 0


@api.get("/tokens", responses=documented(422))
def get_tokens(session: Db, caller: Asking, before: Before = None, limit: Limit = 50) -> Page[AccessTokenRow]:
    """Your personal tokens, newest first, with their last use; administrators see everybody's. Tokens themselves are
    never shown again."""
    return list_tokens(session, visible_account(caller), before, limit)


@api.post("/tokens", status_code=201, responses=documented(403, 422))
def post_token(session: Db, caller: Asking, body: TokenRequest) -> IssuedToken:
    """Create a token for your account, or as an administrator for any. It is sent like `WARPWATCH_TOKEN`, or typed at
    /login, and asked for only where that is set. Scopes: read, submit, triage, administer; each includes those before
    it."""
    return issue_token(session, caller, body)


@api.delete("/tokens/{token_id}", status_code=204, responses=documented(404, 422))
def delete_token(session: Db, caller: Asking, token_id: int) -> None:
    """Revoke one of your tokens, as an administrator any, and the sessions that it opened, at once on all servers."""
    revoke_token(session, token_id, visible_account(caller))


@api.get("/audit", responses=documented(422))
def get_audit(session: Db, before: Before = None, limit: Limit = 50) -> Page[AuditEntry]:
    """Requests that changed something, newest first: who, what and when."""
    return list_audit(session, before, limit)
