"""Reading Chrome traces: torch's own, and those of which a part is broken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpwatch.contract.chrome_trace import TraceReader

EVENTS: list[dict[str, Any]] = [
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": f"aten::{index}",
        "ts": index,
        "dur": 1,
        "args": {"Input Dims": [[{"a": "]"}]]},
    }
    for index in range(6)
]


def in_pieces(text: str, length: int = 7) -> list[str]:
    return [text[start : start + length] for start in range(0, len(text), length)]


def with_text(place: int, text: str, *, alone: bool = False) -> str:
    """The trace with one more thing among its events. alone: whether it is the list of events without an object."""
    parts = [json.dumps(event) for event in EVENTS]
    parts.insert(place, text)
    events = f"[{', '.join(parts)}]"
    return (
        events if alone else f'{{"schemaVersion": 1, "deviceProperties": [{{}}], "traceEvents": {events}, "end": "[]"}}'
    )


def test_events_are_read_in_pieces() -> None:
    events = [{"name": f"é{index}", "args": {"Input Dims": [[index]]}} for index in range(20)]
    text = json.dumps({"schemaVersion": 1, "deviceProperties": [{}], "traceEvents": events, "end": "[]"})
    reader = TraceReader(in_pieces(text))
    assert list(reader) == events
    assert (reader.left_out, reader.mended) == (0, 0)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("place", range(len(EVENTS) + 1))
def test_bare_quotes_in_a_name_are_escaped(place: int, alone: bool) -> None:
    text = with_text(
        place, '{"ph":"X","cat":"user_annotation","name":"step "one", again","ts":1,"dur":1,"args":{}}', alone=alone
    )
    reader = TraceReader(in_pieces(text))
    events = list(reader)
    assert [event for event in events if event in EVENTS] == EVENTS
    assert events[place]["name"] == 'step "one", again'
    assert (reader.left_out, reader.mended) == (0, 1)


@pytest.mark.parametrize(
    "damage", ['{"ph": "X", "name": , "ts": 1}', '{"ph": "X", "args": {"a": nope}}', "null", "7", '"x"']
)
@pytest.mark.parametrize("place", range(len(EVENTS) + 1))
def test_an_event_that_is_none_costs_only_itself(place: int, damage: str) -> None:
    reader = TraceReader([with_text(place, damage)])
    assert list(reader) == EVENTS
    assert reader.left_out == 1


def test_a_trace_that_ends_in_the_middle_gives_what_is_there() -> None:
    text = json.dumps({"traceEvents": EVENTS})
    reader = TraceReader(in_pieces(text[: text.index("aten::4")]))
    assert list(reader) == EVENTS[:4]
    assert reader.left_out == 1


@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from(["[", "]", "{", "}", '"traceEvents"', ":", ",", "1", '"']), max_size=40).map("".join)
)
@settings(max_examples=300, deadline=None)
def test_any_text_ends(text: str) -> None:
    assert all(isinstance(event, dict) for event in TraceReader(in_pieces(text, 3)))
