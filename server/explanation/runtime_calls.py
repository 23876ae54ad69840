"""CUDA calls of traces: which torch operator makes them, how long they take, and which kernels they launch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from warpwatch.contract.chrome_trace import RUNTIME_CATEGORIES
from warpwatch.db.reads.query import Session
from warpwatch.db.traces import TraceListRow
from warpwatch.server.explanation.timeline import TraceEvent, read_events
from warpwatch.server.explanation.trace_files import load_trace

MOST_COMPRESSED = 500_000
"""Bytes up to which a file is read for this; one of that size takes a quarter of a second."""
MOST_FILES = 20
"""Files that are read for one answer."""


@dataclass(frozen=True, slots=True)
class RuntimeCallRow:
    """The calls of one CUDA function by one torch operator in one trace, over all recorded calls.

    torch_operator: the innermost one around them; empty where none is.
    """

    trace_id: int
    operator: str
    variant: str
    case: str
    commit_sha: str
    device_key: str
    function: str
    torch_operator: str
    calls: int
    total_ns: float
    longest_ns: float


def read_runtime_calls(session: Session, traces: Iterable[TraceListRow]) -> list[RuntimeCallRow]:
    """The rows of all traces that are not too large, in the order of the traces, the most expensive first in each."""
    rows: list[RuntimeCallRow] = []
    for trace in [trace for trace in traces if trace.compressed_size <= MOST_COMPRESSED][:MOST_FILES]:
        spans: dict[tuple[str, str], list[float]] = defaultdict(list)
        for event, caller in calls_with_callers(load_trace(session, trace.id)):
            spans[event.name, caller].append(event.end - event.start)
        found = [
            RuntimeCallRow(
                trace.id,
                trace.operator,
                trace.variant,
                trace.case,
                trace.commit_sha,
                trace.device_key,
                function,
                caller,
                len(lengths),
                sum(lengths),
                max(lengths),
            )
            for (function, caller), lengths in spans.items()
        ]
        rows += sorted(found, key=lambda row: -row.total_ns)
    return rows


def calls_with_callers(trace: Any) -> Iterator[tuple[TraceEvent, str]]:
    """Every CUDA call of a Chrome trace, and the innermost torch operator around it on its thread."""
    threads: dict[tuple[str, str], list[TraceEvent]] = defaultdict(list)
    for event in read_events(trace):
        if event.category == "cpu_op" or event.category in RUNTIME_CATEGORIES:
            threads[event.thread].append(event)
    for events in threads.values():
        around: list[TraceEvent] = []
        for event in sorted(events, key=lambda event: (event.start, -event.end)):
            while around and around[-1].end <= event.start:
                around.pop()
            if event.category == "cpu_op":
                around.append(event)
            else:
                yield event, around[-1].name if around else ""


def launches_of(trace: Any) -> list[dict[str, Any]]:
    """The survey of a trace whose summary has none: its kernels by the torch operator that launched them."""
    callers = {event.correlation: caller for event, caller in calls_with_callers(trace)}
    rows: dict[str, dict[str, Any]] = {}
    for event in read_events(trace):
        if event.category != "kernel":
            continue
        row: dict[str, Any] = {
            "operator": callers.get(event.correlation),
            "shapes": None,
            "kernel": event.name,
            "grid": _sizes(event.arguments.get("grid")),
            "block": _sizes(event.arguments.get("block")),
            "registers": _count(event.arguments.get("registers per thread")),
            "shared_bytes": _count(event.arguments.get("shared memory")),
        }
        totals = rows.setdefault(str(row), row | {"launches": 0, "total_ns": 0.0})
        totals["launches"] += 1
        totals["total_ns"] += event.end - event.start
    return sorted(rows.values(), key=lambda row: -row["total_ns"])


def _sizes(value: Any) -> list[int]:
    return [size for size in value[:3] if isinstance(size, int)] if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**31 else None


def in_all_traces(rows: Iterable[RuntimeCallRow]) -> list[tuple[str, str, int, float, float]]:
    """(function, operator, calls, nanoseconds, longest) over all traces, the most expensive first."""
    groups: dict[tuple[str, str], list[RuntimeCallRow]] = defaultdict(list)
    for row in rows:
        groups[row.function, row.torch_operator].append(row)
    totals = [
        (
            *key,
            sum(row.calls for row in group),
            sum(row.total_ns for row in group),
            max(map(attrgetter("longest_ns"), group)),
        )
        for key, group in groups.items()
    ]
    return sorted(totals, key=lambda total: -total[3])
