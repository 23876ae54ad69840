"""Says in plain words what is wrong with a value that pydantic rejected, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MESSAGES = {
    "missing": ("is missing", "add it"),
    "extra_forbidden": ("is not a field of this request", "leave it out"),
    "int_parsing": ("is not a whole number", "use a whole number"),
    "int_type": ("is not a whole number", "use a whole number"),
    "int_from_float": ("is not a whole number", "use a whole number"),
    "float_parsing": ("is not a number", "use a number"),
    "bool_parsing": ("is not true or false", "use true or false"),
    "string_type": ("is not a text", "use a text"),
    "list_type": ("is not a list", "use a list"),
    "date_from_datetime_parsing": ("is not a date", "use a day such as 2026-03-31"),
    "date_parsing": ("is not a date", "use a day such as 2026-03-31"),
}
"""Message and remedy by pydantic's type of error."""
_BOUNDS = {
    "ge": ("is too small", "use at least {}"),
    "gt": ("is too small", "use more than {}"),
    "le": ("is too large", "use at most {}"),
    "lt": ("is too large", "use less than {}"),
    "min_length": ("is too short", "use at least {} {}"),
    "max_length": ("is too long", "use at most {} {}"),
}
"""Message and remedy by the name of the limit that was violated; lengths count characters or entries."""


def explain(error: Mapping[str, Any]) -> tuple[str, str]:
    """(message, remedy) for one entry of ValidationError.errors(); the field's name belongs in front of the message."""
    if error["type"] in _MESSAGES:
        return _MESSAGES[error["type"]]
    context = error.get("ctx", {})
    if "expected" in context:
        return f"{error.get('input')!r} is not a choice", f"use {context['expected']}"
    unit = "characters" if str(error["type"]).startswith("string") else "entries"
    for name, (message, remedy) in _BOUNDS.items():
        if name in context:
            count = context[name]
            return message, remedy.format(count, unit if count != 1 else {"entries": "entry"}.get(unit, "character"))
    return str(error["msg"]).removeprefix("Value error, "), ""
