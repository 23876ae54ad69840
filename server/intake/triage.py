"""Validation of the triage of a regression."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from urllib.parse import urlsplit

from warpwatch.contract.words import Triage

MAX_NOTE, MAX_NAME, MAX_LINK = 5000, 200, 1000
LONGEST_MUTE = timedelta(days=366)


def link_error(text: str | None) -> str:
    """Why a text cannot be shown as a link; empty for a valid link or none.

    Only http and https are allowed, so that a link cannot run a script.
    """
    if text is None:
        return ""
    try:
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and parts.hostname and not set(text) & set(" \t\r\n<>\"'"):
            return ""
    except ValueError:
        pass
    return "is not an address that begins with https:// or http://"


def until_error(value: date) -> str:
    """Why nothing can be muted until this day; empty for a day of the next year."""
    today = datetime.now(UTC).date()
    return "" if today <= value <= today + LONGEST_MUTE else "is not a day between today and a year from now"


def read_form(form: dict[str, str]) -> tuple[dict[str, str | date | None], dict[str, str]]:
    """The fields to change, where an empty text removes the value; and messages by field."""
    fields: dict[str, str | date | None] = {"state": form["state"], "assignee": form["assignee"] or None}
    errors = {}
    if form["state"] not in list(Triage):
        errors["state"] = f"Choose one of {', '.join(Triage)}."
    if not form["author"]:
        errors["author"] = "Enter your name."
    if link_error(form["link"] or None):
        errors["link"] = "Enter an address that begins with https:// or http://."
    fields["link"] = form["link"] or None
    try:
        fields["due_on"] = date.fromisoformat(form["due_on"]) if form["due_on"] else None
    except ValueError:
        errors["due_on"] = "Enter a date such as 2026-03-31."
    return fields, errors
