"""Reads what a child wrote to its reply channel, which kernel code can write to as well."""

from __future__ import annotations

import json
from typing import Any

from warpwatch.worker.line_reader import printable

_DEEPEST_REPLY = 32
OBJECT_LIMIT, VALUE_LIMIT = 200_000, 2_000_000
"""Objects with lists, and values, of one message: 64 MiB of `[],[],…` would take 2 GB of the parent's memory."""


def parse_reply(line: bytes) -> dict[str, Any]:
    """One message as the database can hold it, and a terminal may show it; ValueError for anything else."""
    if line.count(b"{") + line.count(b"[") > OBJECT_LIMIT or line.count(b",") > VALUE_LIMIT:
        raise ValueError(f"it has more than {OBJECT_LIMIT} objects or {VALUE_LIMIT} values")
    try:
        message = _storable_reply(json.loads(line, parse_int=_bounded_int))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(message, dict):
        raise ValueError("it is no object")
    return message


def _bounded_int(digits: str) -> int:
    # Python refuses to read thousands of digits, with a ValueError as well.
    number = int(digits)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{digits[:40]} does not fit into 64 bits")
    return number


def _storable_reply(value: Any, depth: int = 0) -> Any:
    """`value` as the database can hold it: text without control and broken characters; ValueError where it is nested
    too deep."""
    if isinstance(value, str):
        return printable(value).encode("utf-8", "replace").decode("utf-8")
    if not isinstance(value, dict | list):
        return value
    if depth > _DEEPEST_REPLY:
        raise ValueError("it is nested too deep")
    if isinstance(value, list):
        return [_storable_reply(item, depth + 1) if isinstance(item, str | dict | list) else item for item in value]
    return {_storable_reply(name): _storable_reply(item, depth + 1) for name, item in value.items()}
