"""Dataclasses of the contract to and from JSON values. Reading checks every field, because a child process or a results
file may hold anything."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from math import inf, isfinite
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
Decoder = Callable[[Any], Any]
_PLAIN = frozenset((str, int, float, bool, NoneType))


class _MisfitError(Exception):
    """A value that does not fit. path: where it is, innermost first; put together only for what is reported, because
    a name for each of millions of values would take longer than reading them."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.path: list[str] = []


def to_json(value: Any) -> dict[str, Any]:
    """A dataclass of the contract as plain JSON values. It shares no list and no dictionary with them."""
    encoded: dict[str, Any] = _encode(value)
    return encoded


def from_json(kind: type[T], value: Any) -> T:
    """A dataclass of the contract from plain JSON values; fields that are absent take their defaults.

    Raises ValueError, which names the field that is missing, unknown or of a wrong type.
    """
    named: Any = kind
    try:
        decoded: T = _decoder(named)(value)
    except _MisfitError as misfit:
        where = "".join(reversed(misfit.path))
        raise ValueError(f"{kind.__name__}{where}: {misfit}") from None
    return decoded


# --- writing --------------------------------------------------------------------------------------------------


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def _encode(value: Any) -> Any:
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if names := _names(kind):
        return {name: _encode(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [item if type(item) in _PLAIN else _encode(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


# --- reading --------------------------------------------------------------------------------------------------


@cache
def _decoder(kind: Any) -> Decoder:
    """The function that checks and reads values of a type; made once, because that takes longer than a value."""
    if is_dataclass(kind):
        return _dataclass_decoder(kind)
    origin = get_origin(kind)
    if origin is list:
        return _list_decoder(get_args(kind)[0])
    if origin is tuple:
        return _tuple_decoder(get_args(kind))
    if origin is dict:
        return _dict_decoder(get_args(kind)[1])
    if origin is UnionType:
        inner = _decoder(next(arg for arg in get_args(kind) if arg is not NoneType))
        is_optional = NoneType in get_args(kind)
        return lambda value: None if value is None and is_optional else inner(value)
    if kind is Any:
        return lambda value: value
    if issubclass(kind, StrEnum):
        return _enum_decoder(kind)
    return _float if kind is float else _int if kind is int else _exact_decoder(kind)


@cache
def _field_decoders(kind: Any) -> dict[str, Decoder]:
    return {name: _decoder(hint) for name, hint in get_type_hints(kind).items()}


def _dataclass_decoder(kind: Any) -> Decoder:
    def decode(value: Any) -> Any:
        _expect(isinstance(value, dict), "an object", value)
        # Not before: a type may hold itself.
        decoders = _field_decoders(kind)
        if not decoders.keys() >= value.keys():
            raise _MisfitError(f"unknown field {min(value.keys() - decoders.keys())!r}")
        decoded, key = {}, ""
        try:
            for key, item in value.items():
                decoded[key] = decoders[key](item)
        except _MisfitError as misfit:
            misfit.path.append(f".{key}")
            raise
        try:
            return kind(**decoded)
        except TypeError:
            missing = [f.name for f in fields(kind) if f.name not in value]
            raise _MisfitError(f"missing one of the fields {', '.join(missing)}") from None
        except ValueError as error:
            raise _MisfitError(str(error)) from None

    return decode


def _list_decoder(kind: Any) -> Decoder:
    inner = _decoder(kind)

    def decode(value: Any) -> Any:
        _expect(isinstance(value, list), "a list", value)
        # Samples.
        if kind is float and all(type(item) is float and isfinite(item) for item in value):
            return value
        return _decode_items([inner] * len(value), value)

    return decode


def _tuple_decoder(kinds: tuple[Any, ...]) -> Decoder:
    inner = [_decoder(kind) for kind in kinds]

    def decode(value: Any) -> Any:
        _expect(isinstance(value, list | tuple) and len(value) == len(kinds), f"{len(kinds)} values", value)
        return tuple(_decode_items(inner, value))

    return decode


def _decode_items(decoders: list[Decoder], items: list[Any]) -> list[Any]:
    decoded: list[Any] = []
    try:
        for decode, item in zip(decoders, items, strict=True):
            decoded.append(decode(item))
    except _MisfitError as misfit:
        misfit.path.append(f"[{len(decoded)}]")
        raise
    return decoded


def _dict_decoder(kind: Any) -> Decoder:
    inner = _decoder(kind)

    def decode(value: Any) -> Any:
        _expect(isinstance(value, dict), "an object", value)
        if kind is Any:
            return value
        decoded, key = {}, ""
        try:
            for key, item in value.items():
                decoded[key] = inner(item)
        except _MisfitError as misfit:
            misfit.path.append(f".{key}")
            raise
        return decoded

    return decode


def _enum_decoder(kind: type[StrEnum]) -> Decoder:
    members = {str(member): member for member in kind}

    def decode(value: Any) -> Any:
        if not isinstance(value, str) or value not in members:
            _expect(False, f"one of {', '.join(kind)}", value)
        return members[value]

    return decode


def _float(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        # PostgreSQL writes the largest float as an integer of 309 digits.
        value = float(value) if abs(value) <= sys.float_info.max else inf
    _expect(isinstance(value, float), "float", value)
    _expect(isfinite(value), "a finite number", value)
    return value


def _int(value: Any) -> Any:
    _expect(isinstance(value, int) and not isinstance(value, bool), "int", value)
    _expect(-(2**63) <= value < 2**63, "an integer of 64 bits", value)
    return value


def _exact_decoder(kind: type[Any]) -> Decoder:
    def decode(value: Any) -> Any:
        _expect(isinstance(value, kind), kind.__name__, value)
        return value

    return decode


def _expect(condition: bool, expected: str, value: Any) -> None:
    if not condition:
        # Not str(): the value may hold millions of others, and a text of all of them takes gigabytes.
        raise _MisfitError(f"expected {expected}, got {reprlib.repr(value)[:80]}")
