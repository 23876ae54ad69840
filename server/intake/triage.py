"""What a person may say of a regression, and what is wrong with it."""

from __future__ import annotations

from datetime import date
from urllib.parse import urlsplit

from warpwatch.contract.words import Triage

MAX_NOTE, MAX_NAME, MAX_LINK = 5000, 200, 1000


def link_error(text: str | None) -> str:
    """Why a text is no link that a page may offer; empty when it is one, or nothing.

    Only the web: a script must not become a link.
    """
    if text is None:
        return ""
    try:
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and parts.hostname and not set(text) & set(" \t\r\n<>\"'"):
            return ""
    except ValueError:
        pass
    return "is no address that begins with https:// or http://"


def read_form(form: dict[str, str]) -> tuple[dict[str, str | date | None], dict[str, str]]:
    """Fields to change from what a form says, a blank one taking its value away; and messages by field."""
    fields: dict[str, str | date | None] = {"state": form["state"], "assignee": form["assignee"] or None}
    errors = {}
    if form["state"] not in list(Triage):
        errors["state"] = f"Choose one of {', '.join(Triage)}."
    if not form["author"]:
        errors["author"] = "Say who you are, so that others can ask."
    if link_error(form["link"] or None):
        errors["link"] = "Use an address that begins with https:// or http://."
    fields["link"] = form["link"] or None
    try:
        fields["due_on"] = date.fromisoformat(form["due_on"]) if form["due_on"] else None
    except ValueError:
        errors["due_on"] = "Use a day such as 2026-03-31."
    return fields, errors
