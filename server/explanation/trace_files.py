"""Loads stored Chrome traces, and merges two into one file for Perfetto."""

from __future__ import annotations

import json
from typing import Any

from warpwatch.db.reads.query import Session
from warpwatch.db.traces import iter_trace_json

MOST_BYTES = 16 * 2**20
"""Uncompressed size up to which a trace is drawn and merged; Perfetto opens larger ones."""


def load_trace(session: Session, trace_id: int) -> dict[str, Any] | None:
    """The trace as JSON; None where it is too large, or is not a Chrome trace.

    The length is counted while the file is inflated, because the size on record is what a child claimed.
    """
    pieces, length = [], 0
    try:
        for piece in iter_trace_json(session, trace_id):
            length += len(piece)
            if length > MOST_BYTES:
                return None
            pieces.append(piece)
        trace = json.loads(b"".join(pieces))
    except (OSError, ValueError, RecursionError):
        return None
    return trace if isinstance(trace, dict) and isinstance(trace.get("traceEvents"), list) else None


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
