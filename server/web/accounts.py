"""Accounts and invitations: their page and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.contract.words import AccountRole, TokenScope
from warpwatch.db.accounts import AccountRow, change_account, list_accounts, read_account
from warpwatch.db.errors import StateError
from warpwatch.db.reads.query import Page
from warpwatch.server.http.access import Asking
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Before, Config, Db, Limit
from warpwatch.server.intake.accounts import AccountChange, AccountRequest, Invitation, make_account, renew_invitation
from warpwatch.server.web.forms import form_errors, form_of
from warpwatch.server.web.render import PageScope, Scope
from warpwatch.server.web.tabs import PeopleTab, people_tab
from warpwatch.settings import Settings

router = APIRouter()
Form = Annotated[FormData, Depends(form_of)]
ROLES = {
    AccountRole.VIEWER: "viewer: can read everything",
    AccountRole.SUBMITTER: "submitter: can submit runs",
    AccountRole.TRIAGER: "triager: can decide about changes",
    AccountRole.ADMINISTRATOR: "administrator: can do everything",
}
BLANK: dict[str, Any] = {"name": "", "role": AccountRole.VIEWER}


@router.post("/accounts")
def add(page: PageScope, settings: Config, form: Form) -> Response:
    """Makes an account and shows its link once; shows the form again with a message per invalid field."""
    entered: dict[str, Any] = {name: str(value).strip() for name, value in form.items()}
    try:
        invitation = make_account(page.session, settings, AccountRequest.model_validate(entered))
    except ValidationError as error:
        return show(page, settings, entered, form_errors(error))
    except StateError as error:
        return show(page, settings, entered, {"name": f"{str(error)[:1].upper()}{str(error)[1:]}."})
    return show(page, settings, invitation=invitation)


@router.post("/accounts/{account_id}/invite")
def invite(page: PageScope, settings: Config, account_id: int) -> Response:
    """Shows another link for an account once."""
    return show(page, settings, invitation=renew_invitation(page.session, settings, account_id))


@router.post("/accounts/{account_id}")
def change(page: PageScope, settings: Config, account_id: int, form: Form) -> Response:
    """Sets the role, or disables or enables an account."""
    entered = {name: str(value) for name, value in form.items()}
    try:
        body = AccountChange.model_validate(entered)
    except ValidationError as error:
        return show(page, settings, errors=form_errors(error))
    change_account(page.session, account_id, body.role, body.is_disabled)
    return RedirectResponse(people_tab(PeopleTab.USERS), 303)


def show(
    page: Scope,
    settings: Settings,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    before: int | None = None,
    invitation: Invitation | None = None,
) -> Response:
    """Every account, newest first, and the form."""
    return page.page(
        "settings/users.html",
        json="/accounts",
        status=422 if errors else 200,
        accounts=list_accounts(page.session, None, before),
        before=before,
        roles=ROLES,
        entered=BLANK | (entered or {}),
        errors=errors or {},
        invitation=invitation,
        provider=settings.provider,
        is_open=page.request.app.state.sessions is None,
    )


api = APIRouter(tags=["access"])
Name = Annotated[str | None, Query(max_length=200, description="Only the account of this name.")]


@dataclass(frozen=True, slots=True)
class CallerDescription:
    """Who you are to this server. account_id: null for `WARPWATCH_TOKEN` and where no token is asked for."""

    name: str
    scope: TokenScope
    account_id: int | None


@api.get("/caller", responses=documented(422))
def get_caller(caller: Asking) -> CallerDescription:
    """Who you are to this server, and what you may do."""
    return CallerDescription(caller.name, caller.scope, caller.account_id)


@api.get("/accounts", responses=documented(422))
def get_accounts(session: Db, name: Name = None, before: Before = None, limit: Limit = 50) -> Page[AccountRow]:
    """Accounts with role, state and last use, newest first."""
    return list_accounts(session, name, before, limit)


@api.post("/accounts", status_code=201, responses=documented(409, 422))
def post_account(session: Db, settings: Config, body: AccountRequest) -> Invitation:
    """Create an account and a link that signs its reader in once, within seven days. Where an OpenID provider signs
    people in, nobody needs the link: the account belongs to whom the provider knows by this verified address."""
    return make_account(session, settings, body)


@api.patch("/accounts/{account_id}", responses=documented(404, 422))
def patch_account(session: Db, account_id: int, body: AccountChange) -> AccountRow:
    """Change the role, disable or enable. Sessions and tokens that are open follow at once, on all servers."""
    change_account(session, account_id, body.role, body.is_disabled)
    account = read_account(session, account_id)
    if account is None:
        raise not_found("account", account_id)
    return account


@api.post("/accounts/{account_id}/invitation", status_code=201, responses=documented(404, 409, 422))
def post_invitation(session: Db, settings: Config, account_id: int) -> Invitation:
    """Create another link for an account, such as for somebody who lost the token. The link before it ends."""
    return renew_invitation(session, settings, account_id)
