"""Personal tokens with their last use, and who changed what."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.contract.words import TokenScope
from warpwatch.db.access import revoke_token
from warpwatch.db.reads.access import list_audit, list_tokens
from warpwatch.server.api.access import visible_account
from warpwatch.server.http.access import Asking, Caller, may
from warpwatch.server.http.problems import Problem
from warpwatch.server.http.service import Before
from warpwatch.server.intake.access import IssuedToken, TokenRequest, issue_token
from warpwatch.server.pages.forms import form_errors
from warpwatch.server.pages.render import Page
from warpwatch.server.pages.submissions import form_of

router = APIRouter()
BLANK: dict[str, Any] = {"purpose": "", "scope": TokenScope.READ, "days": "90"}


@router.get("/tokens")
def tokens(page: Page, caller: Asking, before: Before = None) -> Response:
    """Every token that the caller may see, newest first, and the form."""
    return _show(page, caller, before=before)


@router.post("/tokens")
def add(page: Page, caller: Asking, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Makes a token and shows it once; shows the form again with a message per invalid field."""
    entered: dict[str, Any] = {name: str(value).strip() for name, value in form.items()}
    given = {"days": entered.get("days") or None, "person": entered.get("person") or None}
    try:
        issued = issue_token(page.session, caller, TokenRequest.model_validate(entered | given))
    except (ValidationError, Problem) as error:
        return _show(page, caller, entered, form_errors(error))
    return _show(page, caller, issued=issued)


@router.post("/tokens/{token_id}/revoke")
def revoke(page: Page, caller: Asking, token_id: int) -> Response:
    revoke_token(page.session, token_id, visible_account(caller))
    return RedirectResponse("/tokens", 303)


@router.get("/audit")
def audit(page: Page, before: Before = None) -> Response:
    """Who changed what, newest first."""
    return page.page("audit.html", json="/audit", entries=list_audit(page.session, before), before=before)


def _show(
    page: Page,
    caller: Caller,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    before: int | None = None,
    issued: IssuedToken | None = None,
) -> Response:
    return page.page(
        "tokens.html",
        json="/tokens",
        status=422 if errors else 200,
        tokens=list_tokens(page.session, visible_account(caller), before),
        before=before,
        scopes=[scope for scope in TokenScope if may(caller, scope)],
        caller=caller,
        is_administrator=may(caller, TokenScope.ADMINISTER),
        entered=BLANK | {"person": caller.name if caller.account_id else ""} | (entered or {}),
        errors=errors or {},
        issued=issued,
        is_open=page.request.app.state.sessions is None,
    )
