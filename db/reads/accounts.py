"""Reads accounts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from warpwatch.db.reads.query import Page, Session, fetch_one, fetch_page

_COLUMNS = """
id, name, role, issuer, created_at, last_used_at,
CASE WHEN disabled_at IS NOT NULL THEN 'disabled' WHEN invitation_expires_at > now() THEN 'invited'
     WHEN invitation_expires_at IS NOT NULL AND last_used_at IS NULL THEN 'expired' ELSE 'active' END AS state
"""


@dataclass(frozen=True, slots=True)
class AccountRow:
    """Who may sign in. state: active | invited | expired (the invitation was not used in time) | disabled. issuer: the
    OpenID provider that signs the person in; null where links and tokens do."""

    id: int
    name: str
    role: str
    issuer: str | None
    created_at: datetime
    last_used_at: datetime | None
    state: str


def list_accounts(
    session: Session, name: str | None = None, before: int | None = None, limit: int = 50
) -> Page[AccountRow]:
    """Accounts, newest first; with a name, that one."""
    sql = f"""
    SELECT {_COLUMNS} FROM accounts
    WHERE (CAST(:before AS bigint) IS NULL OR id < :before) AND (CAST(:name AS text) IS NULL OR name = :name)
    ORDER BY id DESC LIMIT :limit
    """
    return fetch_page(session, AccountRow, sql, limit, before=before, name=name)


def read_account(session: Session, account_id: int) -> AccountRow | None:
    return fetch_one(session, AccountRow, f"SELECT {_COLUMNS} FROM accounts WHERE id = :id", id=account_id)


def find_invited(session: Session, invitation_hash: str) -> AccountRow | None:
    """The account of an invitation that can be accepted."""
    sql = f"""
    SELECT {_COLUMNS} FROM accounts
    WHERE invitation_hash = :hash AND invitation_expires_at > now() AND disabled_at IS NULL
    """
    return fetch_one(session, AccountRow, sql, hash=invitation_hash)
