"""Accounts: who may sign in, and with which role."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.words import AccountRole
from warpwatch.db.access import USE_SECONDS
from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError, StateError
from warpwatch.db.reads.query import Page, fetch_one, fetch_page

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


@dataclass(frozen=True, slots=True)
class AccountHolder:
    """Whose account it is, and what that person may do."""

    id: int
    name: str
    role: AccountRole


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom an OpenID provider signed in. role: what its groups give there, None where they give none. email: None
    unless the provider has verified it."""

    issuer: str
    subject: str
    name: str
    email: str | None
    role: AccountRole | None


def ensure_account(s: Session, name: str, role: AccountRole) -> AccountHolder:
    """The account of that name, which is made with `role` where there is none."""
    sql = "INSERT INTO accounts (name, role) VALUES (:name, :role) ON CONFLICT DO NOTHING"
    s.execute(text(sql), {"name": storable(name), "role": role})
    row = s.execute(text("SELECT id, name, role FROM accounts WHERE name = :name"), {"name": storable(name)}).one()
    return AccountHolder(row.id, row.name, AccountRole(row.role))


def add_account(s: Session, name: str, role: AccountRole) -> int:
    """The id of a new account; StateError when the name is taken."""
    sql = "INSERT INTO accounts (name, role) VALUES (:name, :role) ON CONFLICT DO NOTHING RETURNING id"
    account_id = s.scalar(text(sql), {"name": storable(name), "role": role})
    if account_id is None:
        raise StateError(f"there is an account called {name!r} already; invite it again, or choose another name")
    return int(account_id)


def change_account(
    s: Session, account_id: int, role: AccountRole | None = None, is_disabled: bool | None = None
) -> None:
    """Sets what is given, for sessions and tokens that are open as well; NotFoundError for an unknown account."""
    sql = """
    UPDATE accounts SET role = coalesce(:role, role), is_role_fixed = is_role_fixed OR CAST(:role AS text) IS NOT NULL,
        disabled_at = CASE CAST(:is_disabled AS boolean) WHEN true THEN coalesce(disabled_at, now())
                                                         WHEN false THEN NULL ELSE disabled_at END,
        invitation_hash = CASE WHEN CAST(:is_disabled AS boolean) THEN NULL ELSE invitation_hash END,
        invitation_expires_at = CASE WHEN CAST(:is_disabled AS boolean) THEN NULL ELSE invitation_expires_at END
    WHERE id = :id RETURNING id
    """
    values = {"id": account_id, "role": role, "is_disabled": is_disabled}
    if s.execute(text(sql), values).one_or_none() is None:
        raise NotFoundError(f"there is no account {account_id}")


def invite(s: Session, account_id: int, invitation_hash: str, expires_at: datetime) -> None:
    """Replaces the invitation of an account; StateError for one that is disabled."""
    sql = """
    UPDATE accounts SET invitation_hash = :hash, invitation_expires_at = :expires_at
    WHERE id = :id AND disabled_at IS NULL RETURNING id
    """
    values = {"id": account_id, "hash": invitation_hash, "expires_at": expires_at}
    if s.execute(text(sql), values).one_or_none() is not None:
        return
    if s.execute(text("SELECT id FROM accounts WHERE id = :id"), {"id": account_id}).one_or_none() is None:
        raise NotFoundError(f"there is no account {account_id}")
    raise StateError("the account is disabled; enable it first")


def accept_invitation(s: Session, invitation_hash: str) -> AccountHolder | None:
    """Ends an invitation that has not expired and returns whose it was. Of two requests, one gets it."""
    sql = """
    UPDATE accounts SET invitation_hash = NULL, invitation_expires_at = NULL
    WHERE invitation_hash = :hash AND invitation_expires_at > now() AND disabled_at IS NULL RETURNING id, name, role
    """
    return _holder(s.execute(text(sql), {"hash": invitation_hash}).one_or_none())


def use_account(s: Session, account_id: int) -> AccountHolder | None:
    """The account unless it is disabled; notes that it was used."""
    sql = """
    SELECT id, name, role, last_used_at IS NULL OR last_used_at < now() - make_interval(secs => :seconds) AS is_stale
    FROM accounts WHERE id = :id AND disabled_at IS NULL
    """
    row = s.execute(text(sql), {"id": account_id, "seconds": USE_SECONDS}).one_or_none()
    if row is not None and row.is_stale:
        s.execute(text("UPDATE accounts SET last_used_at = now() WHERE id = :id"), {"id": row.id})
    return _holder(row)


def sign_in(s: Session, identity: Identity) -> AccountHolder | None:
    """The account of whom a provider signed in, with the role that its groups give; None where it may not sign in.

    An account that an administrator made under the verified e-mail address becomes theirs. Other accounts of the same
    name do not.
    """
    known = {"issuer": identity.issuer, "subject": identity.subject}
    sql = "SELECT id, role, is_role_fixed, disabled_at FROM accounts WHERE issuer = :issuer AND subject = :subject"
    row = s.execute(text(sql), known).one_or_none()
    if row is None and identity.email is not None:
        sql = """
        UPDATE accounts SET issuer = :issuer, subject = :subject WHERE name = :email AND issuer IS NULL
        RETURNING id, role, is_role_fixed, disabled_at
        """
        row = s.execute(text(sql), known | {"email": storable(identity.email)}).one_or_none()
    if row is None:
        if identity.role is None:
            return None
        sql = """
        INSERT INTO accounts (name, role, is_role_fixed, issuer, subject, last_used_at)
        VALUES (:name, :role, false, :issuer, :subject, now()) ON CONFLICT DO NOTHING RETURNING id, name, role
        """
        values = {
            "name": storable(identity.email or identity.name),
            "role": identity.role,
            "issuer": identity.issuer,
            "subject": identity.subject,
        }
        return _holder(s.execute(text(sql), values).one_or_none())
    if row.disabled_at is not None or (identity.role is None and not row.is_role_fixed):
        return None
    if not row.is_role_fixed:
        s.execute(text("UPDATE accounts SET role = :role WHERE id = :id"), {"id": row.id, "role": identity.role})
    return use_account(s, row.id)


def _holder(row: Any) -> AccountHolder | None:
    return AccountHolder(row.id, row.name, AccountRole(row.role)) if row is not None else None
