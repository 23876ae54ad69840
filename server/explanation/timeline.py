"""Reads a Chrome trace into the lanes of a timeline: torch operators and CUDA calls on the host, kernels on the device.

Pure: events in, plain rows out. A trace comes from a child that ran kernel code, so any field may be missing or wrong;
such an event is left out. Times are nanoseconds since the call began.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from warpwatch.contract.chrome_trace import (
    CALL,
    DEVICE_CATEGORIES,
    LONGEST_US,
    RUNTIME_CATEGORIES,
    arguments_of,
    read_times,
)

MOST_DEPTH = 3
"""Levels of nested operators that a lane shows."""
MOST_LANES = 4
"""Lanes of the host, and as many of the device."""
NOTABLE_GAP = 0.01
"""Share of the call from which an idle gap of the device is shown."""


@dataclass(frozen=True, slots=True)
class TimelineSlice:
    """Something that took time. kind: operator, api, kernel or copy. depth: 0 for what nothing else contains."""

    name: str
    start: float
    duration: float
    kind: str
    depth: int = 0

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass(frozen=True, slots=True)
class TimelineLane:
    """One thread, the CUDA calls of one thread, or one stream. device: number of the stream's device, None on the
    host."""

    name: str
    device: str | None
    slices: list[TimelineSlice]

    @property
    def is_device(self) -> bool:
        return self.device is not None

    @property
    def depth(self) -> int:
        return max((piece.depth for piece in self.slices), default=0) + 1


@dataclass(frozen=True, slots=True)
class Timeline:
    """One recorded call.

    call: its number, from 0. calls: how many were recorded. origin: when its first event began, on the clock of the
    trace.
    gaps: (start, duration) in which no stream of a device was busy, by device. hidden_lanes: how many lanes are not
    shown.
    """

    call: int
    calls: int
    origin: float
    duration: float
    lanes: list[TimelineLane]
    gaps: dict[str, list[tuple[float, float]]]
    hidden_lanes: int

    @property
    def work(self) -> list[TimelineSlice]:
        """Kernels and copies in order; on a CPU, the outermost operators."""
        device = [piece for lane in self.lanes if lane.is_device for piece in lane.slices]
        host = [piece for lane in self.lanes for piece in lane.slices if piece.kind == "operator" and not piece.depth]
        return sorted(device or host, key=lambda piece: piece.start)


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """A torch operator, CUDA call, kernel, copy or recorded call of a Chrome trace."""

    name: str
    category: str
    start: float
    end: float
    thread: tuple[str, str]
    correlation: str
    arguments: Mapping[str, Any]


def read_timeline(trace: Any, call: int | None = None, *, like_ns: float | None = None) -> Timeline | None:
    """One call of a Chrome trace from its first event on, by default the last, which is the warmest; None when nothing
    was recorded. like_ns: chooses the call whose length is nearest to that instead."""
    events = _of_one_clock(list(read_events(trace)))
    calls = sorted((event for event in events if event.category == "user_annotation"), key=lambda event: event.start)
    groups = _by_call(events, calls) if calls else [events]
    groups = [[event for event in group if event.category != "user_annotation"] for group in groups]
    spans = {index: _span(group, calls[index : index + 1]) for index, group in enumerate(groups) if group}
    number = len(groups) - 1 if call is None else max(0, min(call, len(groups) - 1))
    if like_ns is not None and spans:
        number = min(spans, key=lambda index: abs(spans[index][1] - spans[index][0] - like_ns))
    if number not in spans:
        return None
    start, end = spans[number]
    lanes = _lanes(groups[number], start)
    device = [lane for lane in lanes if lane.is_device]
    host = [lane for lane in lanes if not lane.is_device]
    shown = host[:MOST_LANES] + device[:MOST_LANES]
    gaps = {
        number: _gaps([lane for lane in device if lane.device == number], end - start)
        for number in sorted({lane.device for lane in device if lane.device is not None})
    }
    return Timeline(number, len(groups), start, end - start, shown, gaps, len(lanes) - len(shown))


def _span(events: list[TraceEvent], call: list[TraceEvent]) -> tuple[float, float]:
    """From the first event of a call to the end of its last event, or of the call itself. What the profiler does before
    the first event is left out."""
    return min(event.start for event in events), max(event.end for event in [*events, *call])


def _of_one_clock(events: list[TraceEvent]) -> list[TraceEvent]:
    """Leaves out events that began more than a day from the middle one: their clock counts from elsewhere."""
    if not events:
        return []
    middle = sorted(event.start for event in events)[len(events) // 2]
    return [event for event in events if abs(event.start - middle) <= LONGEST_US * 1e3]


def read_events(trace: Any) -> Iterable[TraceEvent]:
    """The events of a Chrome trace that a timeline shows."""
    rows = trace.get("traceEvents") if isinstance(trace, dict) else trace
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict) or row.get("ph") != "X":
            continue
        name, category, times = row.get("name"), row.get("cat"), read_times(row)
        if not (isinstance(name, str) and isinstance(category, str) and times is not None):
            continue
        is_known = category in (*DEVICE_CATEGORIES, *RUNTIME_CATEGORIES, "cpu_op")
        if is_known or (category == "user_annotation" and name == CALL):
            arguments = arguments_of(row)
            thread, correlation = (str(row.get("pid")), str(row.get("tid"))), str(arguments.get("correlation"))
            yield TraceEvent(name, category, times[0], sum(times), thread, correlation, arguments)


def _by_call(events: list[TraceEvent], calls: list[TraceEvent]) -> list[list[TraceEvent]]:
    """The events of each call. Device work belongs to the call that launched it, however late it runs."""
    starts = [event.start for event in calls]

    def call_of(event: TraceEvent) -> int | None:
        index = bisect_right(starts, event.start) - 1
        return index if index >= 0 and event.start <= calls[index].end else None

    launched_by = {event.correlation: call_of(event) for event in events if event.category in RUNTIME_CATEGORIES}
    groups: list[list[TraceEvent]] = [[] for _ in calls]
    for event in events:
        number = call_of(event)
        if event.category in DEVICE_CATEGORIES:
            number = launched_by.get(event.correlation, number)
        if number is not None:
            groups[number].append(event)
    return groups


def _lanes(events: list[TraceEvent], start: float) -> list[TimelineLane]:
    """Threads by their first operator, each followed by its CUDA calls; then the streams."""
    devices: dict[tuple[str, str], str] = {}
    groups: dict[tuple[int, tuple[str, str]], list[TraceEvent]] = defaultdict(list)
    for event in events:
        order = 2 if event.category in DEVICE_CATEGORIES else 1 if event.category in RUNTIME_CATEGORIES else 0
        groups[order, event.thread].append(event)
        if order == 2:
            devices.setdefault(event.thread, str(event.arguments.get("device", event.thread[0])))
    has_several = len(set(devices.values())) > 1
    first = {key: min(event.start for event in group) for key, group in groups.items()}
    threads = {thread for order, thread in groups if order < 2}
    first_of_thread = {
        thread: min(first[key] for key in groups if key[0] < 2 and key[1] == thread) for thread in threads
    }

    def place(key: tuple[int, tuple[str, str]]) -> tuple[bool, float, int]:
        order, thread = key
        return order == 2, first_of_thread[thread] if order < 2 else first[key], order

    lanes = []
    for key in sorted(groups, key=place):
        order, thread = key
        device = devices[thread] if order == 2 else None
        stream = f"GPU {device} stream {thread[1]}" if has_several else "stream " + thread[1]
        name = ("host thread " + thread[1], "CUDA calls", stream)[order]
        lanes.append(TimelineLane(name, device, _nested(groups[key], start)))
    return lanes


def _nested(events: list[TraceEvent], start: float) -> list[TimelineSlice]:
    """Slices with their depth: how many earlier ones of the lane they lie in."""
    slices: list[TimelineSlice] = []
    open_ends: list[float] = []
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        while open_ends and open_ends[-1] <= event.start:
            open_ends.pop()
        if len(open_ends) < MOST_DEPTH:
            kind = {"cpu_op": "operator", "kernel": "kernel"}.get(event.category)
            kind = kind or ("api" if event.category in RUNTIME_CATEGORIES else "copy")
            slices.append(TimelineSlice(event.name, event.start - start, event.end - event.start, kind, len(open_ends)))
        open_ends.append(event.end)
    return slices


def _gaps(lanes: list[TimelineLane], duration: float) -> list[tuple[float, float]]:
    """Notable gaps between the first and the last work of the call on a device, over all its streams."""
    gaps: list[tuple[float, float]] = []
    end = None
    for piece in sorted((piece for lane in lanes for piece in lane.slices), key=lambda piece: piece.start):
        if end is not None and piece.start - end >= NOTABLE_GAP * duration:
            gaps.append((end, piece.start - end))
        end = piece.end if end is None else max(end, piece.end)
    return gaps
