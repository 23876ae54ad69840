"""Accounts: who may sign in, and with which role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query

from warpwatch.contract.words import TokenScope
from warpwatch.db.accounts import change_account
from warpwatch.db.reads.accounts import AccountRow, list_accounts, read_account
from warpwatch.db.reads.query import Page
from warpwatch.server.http.access import Asking
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Before, Config, Db, Limit
from warpwatch.server.intake.accounts import AccountChange, AccountRequest, Invitation, make_account, renew_invitation

router = APIRouter(tags=["access"])
Name = Annotated[str | None, Query(max_length=200, description="Only the account of this name.")]


@dataclass(frozen=True, slots=True)
class CallerDescription:
    """Who you are to this server. account_id: null for `WARPWATCH_TOKEN` and where no token is asked for."""

    name: str
    scope: TokenScope
    account_id: int | None


@router.get("/caller", responses=documented(422))
def get_caller(caller: Asking) -> CallerDescription:
    """Who you are to this server, and what you may do."""
    return CallerDescription(caller.name, caller.scope, caller.account_id)


@router.get("/accounts", responses=documented(422))
def get_accounts(session: Db, name: Name = None, before: Before = None, limit: Limit = 50) -> Page[AccountRow]:
    """Accounts with role, state and last use, newest first."""
    return list_accounts(session, name, before, limit)


@router.post("/accounts", status_code=201, responses=documented(409, 422))
def post_account(session: Db, settings: Config, body: AccountRequest) -> Invitation:
    """Make an account and a link that signs its reader in once, within seven days. Where an OpenID provider signs
    people in, nobody needs the link: the account belongs to whom the provider knows by this verified address."""
    return make_account(session, settings, body)


@router.patch("/accounts/{account_id}", responses=documented(404, 422))
def patch_account(session: Db, account_id: int, body: AccountChange) -> AccountRow:
    """Change the role, disable or enable. Sessions and tokens that are open follow at once, on all servers."""
    change_account(session, account_id, body.role, body.is_disabled)
    account = read_account(session, account_id)
    if account is None:
        raise not_found("account", account_id)
    return account


@router.post("/accounts/{account_id}/invitation", status_code=201, responses=documented(404, 409, 422))
def post_invitation(session: Db, settings: Config, account_id: int) -> Invitation:
    """Make another link for an account, such as for somebody who lost the token. The link before it ends."""
    return renew_invitation(session, settings, account_id)
