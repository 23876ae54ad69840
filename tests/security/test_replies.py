"""What a child writes to its reply channel can be stored, or ends as its crash."""

from __future__ import annotations

import json
from typing import Any

import pytest

from warpwatch.contract.words import Status
from warpwatch.worker.child import ChildFailure, _parse


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": 9223372036854775808}',
        b'{"a": -9223372036854775809}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' * 5000 + b"1" + b"}" * 5000,
        b"[1]",
        b"{",
        b"\xff\xfe",
    ],
)
def test_what_cannot_be_stored_is_a_crash(line: bytes) -> None:
    with pytest.raises(ChildFailure) as caught:
        _parse(line)
    assert caught.value.status is Status.CRASHED


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "\udfffx", "fine \U0001f600 text"])
def test_text_that_cannot_be_stored_is_escaped(text: str) -> None:
    reply: dict[str, Any] = _parse(json.dumps({"message": text, text: [{"deep": text}]}).encode())
    stored = reply["message"]
    assert "\0" not in stored
    stored.encode("utf-8")
    assert reply == {"message": stored, stored: [{"deep": stored}]}
    assert (stored == text) == ("\U0001f600" in text)


def test_numbers_at_the_limits_are_kept() -> None:
    assert _parse(b'{"a": [9223372036854775807, -9223372036854775808, 0.5]}')["a"] == [2**63 - 1, -(2**63), 0.5]
