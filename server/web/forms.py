"""Messages beside the fields of a form."""

from __future__ import annotations

from fastapi import Request
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.server.http.validation import explain

EMPTY_FIELDS = {
    "repository": "Choose a repository.",
    "commits": "Enter a commit, branch or range.",
    "kinds": "Choose at least one kind.",
    "kind": "Choose a kind.",
    "name": "Enter a name.",
    "url": "Enter a path or a URL.",
    "cron": "Enter a cron expression.",
    "person": "Enter your name.",
    "operator": "Enter an operator.",
    "budget_minutes": "Enter a number of device minutes.",
}
"""Messages for fields that were left empty."""
_EMPTY = ("missing", "too_short", "string_too_short")


async def form_of(request: Request) -> FormData:
    """The form of a request, as a dependency."""
    return await request.form()


def field_message(error: FieldError) -> str:
    """Sentence with the error of a field and the remedy."""
    return _sentence(error.message, error.remedy)


def form_errors(error: ValidationError | Problem) -> dict[str, str]:
    """A message for every field at fault, about all that is wrong with it; a problem that names no field is raised
    again."""
    if isinstance(error, Problem):
        if not error.errors:
            raise error
        found: dict[str, list[str]] = {}
        for fault in error.errors:
            found.setdefault(fault.field.partition("[")[0], []).append(field_message(fault))
        return {field: " ".join(sentences) for field, sentences in found.items()}
    messages = {}
    for entry in error.errors():
        # A field of a group has the name of both; of a list the whole field is at fault.
        field = ".".join(part for part in entry["loc"][:2] if isinstance(part, str))
        is_empty = entry["type"] in _EMPTY and field in EMPTY_FIELDS
        messages[field] = EMPTY_FIELDS[field] if is_empty else _sentence(*explain(entry))
    return messages


def _sentence(message: str, remedy: str) -> str:
    text = "; ".join(part for part in (message, remedy) if part)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
