"""Loads stored Chrome traces, and merges two into one file for Perfetto."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from warpwatch.contract.chrome_trace import TraceReader
from warpwatch.db.reads.query import Session
from warpwatch.db.traces import iter_trace_json

MOST_BYTES = 16 * 2**20
"""Uncompressed size up to which a trace is drawn and merged; Perfetto opens larger ones."""


class TraceFault(StrEnum):
    """Why a stored trace is not drawn. too_large: more than MOST_BYTES. unreadable: it is no Chrome trace."""

    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"


class TraceFileError(ValueError):
    def __init__(self, fault: TraceFault) -> None:
        super().__init__(fault)
        self.fault = fault


def open_trace(session: Session, trace_id: int) -> dict[str, Any]:
    """The trace as JSON, without the events that cannot be read; TraceFileError where it is too large, or is no Chrome
    trace.

    The length is counted while the file is inflated, because the size on record is what a child claimed.
    """
    pieces, length = [], 0
    try:
        for piece in iter_trace_json(session, trace_id):
            length += len(piece)
            if length > MOST_BYTES:
                raise TraceFileError(TraceFault.TOO_LARGE)
            pieces.append(piece)
        text = b"".join(pieces).decode("utf-8", "replace")
    except OSError as error:
        raise TraceFileError(TraceFault.UNREADABLE) from error
    try:
        # One call reads a sound file in a tenth of the time.
        trace = json.loads(text)
        trace = {"traceEvents": trace} if isinstance(trace, list) else trace
    except (ValueError, RecursionError):
        trace = {"traceEvents": [*TraceReader([text])]}
        if not trace["traceEvents"]:
            raise TraceFileError(TraceFault.UNREADABLE) from None
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise TraceFileError(TraceFault.UNREADABLE)
    return trace


def load_trace(session: Session, trace_id: int) -> dict[str, Any] | None:
    """As open_trace; None where the trace cannot be drawn."""
    try:
        return open_trace(session, trace_id)
    except TraceFileError:
        return None


def merge_traces(a: dict[str, Any], b: dict[str, Any], names: tuple[str, str], start: tuple[float, float]) -> bytes:
    """One Chrome trace of both, moved so that `start` (microseconds) of both falls on the same time.

    Processes get numbers of their own and the names of the sides, and links between events stay within their side.
    """
    events: list[dict[str, Any]] = []
    for side, (trace, name, origin) in enumerate(zip((a, b), names, start, strict=True)):
        processes: dict[str, int] = {}
        for event in trace["traceEvents"]:
            if not isinstance(event, dict):
                continue
            process = str(event.get("pid"))
            number = processes.setdefault(process, (side + 1) * 1_000_000 + len(processes))
            moved = event | {"pid": number}
            if isinstance(event.get("ts"), int | float):
                moved["ts"] = event["ts"] - origin
            if "id" in event:
                moved["id"] = f"{side}.{event['id']}"
            if event.get("ph") != "M":
                events.append(moved)
        for process, number in processes.items():
            arguments = {"name": f"{'AB'[side]}: {name}, process {process}"}
            events.append({"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": arguments})
            order = {"sort_index": number}
            events.append({"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": order})
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, separators=(",", ":")).encode()
