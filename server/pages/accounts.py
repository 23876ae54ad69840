"""Accounts with role and last use."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.contract.words import AccountRole
from warpwatch.db.accounts import change_account
from warpwatch.db.errors import StateError
from warpwatch.db.reads.accounts import list_accounts
from warpwatch.server.http.permissions import ROLE_SCOPES
from warpwatch.server.http.service import Before, Config
from warpwatch.server.intake.accounts import (
    AccountChange,
    AccountRequest,
    Invitation,
    make_account,
    renew_invitation,
)
from warpwatch.server.pages.forms import form_errors
from warpwatch.server.pages.render import Page
from warpwatch.server.pages.submissions import form_of

router = APIRouter()
Form = Annotated[FormData, Depends(form_of)]
BLANK: dict[str, Any] = {"name": "", "role": AccountRole.VIEWER}


@router.get("/accounts")
def accounts(page: Page, settings: Config, before: Before = None) -> Response:
    """Every account, newest first, and the form."""
    return _show(page, settings, before=before)


@router.post("/accounts")
def add(page: Page, settings: Config, form: Form) -> Response:
    """Makes an account and shows its link once; shows the form again with a message per invalid field."""
    entered: dict[str, Any] = {name: str(value).strip() for name, value in form.items()}
    try:
        invitation = make_account(page.session, settings, AccountRequest.model_validate(entered))
    except ValidationError as error:
        return _show(page, settings, entered, form_errors(error))
    except StateError as error:
        return _show(page, settings, entered, {"name": f"{str(error)[:1].upper()}{str(error)[1:]}."})
    return _show(page, settings, invitation=invitation)


@router.post("/accounts/{account_id}/invite")
def invite(page: Page, settings: Config, account_id: int) -> Response:
    """Shows another link for an account once."""
    return _show(page, settings, invitation=renew_invitation(page.session, settings, account_id))


@router.post("/accounts/{account_id}")
def change(page: Page, settings: Config, account_id: int, form: Form) -> Response:
    """Sets the role, or disables or enables an account."""
    entered = {name: str(value) for name, value in form.items()}
    try:
        body = AccountChange.model_validate(entered)
    except ValidationError as error:
        return _show(page, settings, errors=form_errors(error))
    change_account(page.session, account_id, body.role, body.is_disabled)
    return RedirectResponse("/accounts", 303)


def _show(
    page: Page,
    settings: Config,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    before: int | None = None,
    invitation: Invitation | None = None,
) -> Response:
    return page.page(
        "accounts.html",
        json="/accounts",
        status=422 if errors else 200,
        accounts=list_accounts(page.session, None, before),
        before=before,
        roles=ROLE_SCOPES,
        entered=BLANK | (entered or {}),
        errors=errors or {},
        invitation=invitation,
        provider=settings.provider,
        is_open=page.request.app.state.sessions is None,
    )
