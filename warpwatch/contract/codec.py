"""Dataclasses of the contract to and from JSON values. Reading checks every field, because a child process or a results
file may hold anything."""

from __future__ import annotations

import reprlib
import sys
from dataclasses import asdict, fields, is_dataclass
from enum import StrEnum
from functools import cache
from math import inf, isfinite
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

_hints = cache(get_type_hints)
"""Resolving a class's annotations takes longer than checking its values."""


@cache
def _members(kind: type[StrEnum]) -> dict[str, StrEnum]:
    """The members of an enumeration by value."""
    return {str(member): member for member in kind}


def to_json(value: Any) -> dict[str, Any]:
    """A dataclass of the contract as plain JSON values."""
    return asdict(value)


def from_json(kind: type[T], value: Any) -> T:
    """A dataclass of the contract from plain JSON values; fields that are absent take their defaults.

    Raises ValueError, which names the field that is missing, unknown or of a wrong type.
    """
    decoded: T = _decode(kind, value, kind.__name__)
    return decoded


def _decode(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    origin = get_origin(kind)
    if origin is list:
        _expect(isinstance(value, list), where, "a list", value)
        # Samples: a name for each of millions would take longer than reading them.
        if get_args(kind)[0] is float and all(type(item) is float and isfinite(item) for item in value):
            return value
        return [_decode(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is tuple:
        kinds = get_args(kind)
        _expect(isinstance(value, list | tuple) and len(value) == len(kinds), where, f"{len(kinds)} values", value)
        return tuple(
            _decode(inner, item, f"{where}[{i}]") for i, (inner, item) in enumerate(zip(kinds, value, strict=True))
        )
    if origin is dict:
        _expect(isinstance(value, dict), where, "an object", value)
        inner = get_args(kind)[1]
        if inner is Any:
            return value
        return {key: _decode(inner, item, f"{where}.{key}") for key, item in value.items()}
    if origin is UnionType:
        if value is None and NoneType in get_args(kind):
            return None
        return _decode(next(arg for arg in get_args(kind) if arg is not NoneType), value, where)
    return _decode_scalar(kind, value, where)


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), where, "an object", value)
    hints = _hints(kind)
    unknown = set(value) - set(hints)
    if unknown:
        raise ValueError(f"{where}: unknown field {sorted(unknown)[0]!r}")
    decoded = {key: _decode(hints[key], item, f"{where}.{key}") for key, item in value.items()}
    try:
        return kind(**decoded)
    except TypeError:
        missing = [f.name for f in fields(kind) if f.name not in value]
        raise ValueError(f"{where}: missing one of the fields {', '.join(missing)}") from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _decode_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        # PostgreSQL writes the largest float as an integer of 309 digits.
        value = float(value) if abs(value) <= sys.float_info.max else inf
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        members = _members(kind)
        if not isinstance(value, str) or value not in members:
            _expect(False, where, f"one of {', '.join(kind)}", value)
        return members[value]
    _expect(isinstance(value, kind) and (kind is bool or not isinstance(value, bool)), where, kind.__name__, value)
    if kind is float:
        _expect(isfinite(value), where, "a finite number", value)
    if kind is int:
        _expect(-(2**63) <= value < 2**63, where, "an integer of 64 bits", value)
    return value


def _expect(condition: bool, where: str, expected: str, value: Any) -> None:
    if not condition:
        # Not str(): the value may hold millions of others, and a text of all of them takes gigabytes.
        raise ValueError(f"{where}: expected {expected}, got {reprlib.repr(value)[:80]}")
