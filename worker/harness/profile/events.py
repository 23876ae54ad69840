"""Reads a Chrome trace of torch.profiler in pieces and keeps the events that the tables need. Durations are in ns.

Every event is assigned to the recorded call that it belongs to; each call is an annotation of the trace. Outside the
calls there is only the harness, which waits for the device.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from warpwatch.contract.chrome_trace import (
    CALL,
    DEVICE_CATEGORIES,
    EVENTS,
    RUNTIME_CATEGORIES,
    TraceReader,
    arguments_of,
    read_times,
)

_RUNTIME_NAMES = {"INVALID": "unknown"}
"""The profiler's name for functions newer than itself, and ours."""
_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class Span:
    """One event with a duration. call: index of the recorded call that it belongs to, None outside all calls."""

    name: str
    start: float
    duration: float
    call: int | None
    arguments: dict[str, Any]
    thread: Any = None

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass(slots=True)
class Recording:
    """The events of a trace.

    left_out: how many of them could not be read. is_mended: whether a viewer needs the trace written anew, because
    events were left out or had names with bare quotes.
    device: properties of the first device. work: kernels, copies and fills on the device, by start. runtime: calls of
    the CUDA API. operations: torch operators on the host. memory: every allocator event as (time, bytes allocated then,
    change in bytes, (device type, device index)).
    """

    device: dict[str, Any] = field(default_factory=dict)
    calls: list[Span] = field(default_factory=list)
    work: list[Span] = field(default_factory=list)
    runtime: list[Span] = field(default_factory=list)
    operations: list[Span] = field(default_factory=list)
    memory: list[tuple[float, int, int, tuple[int, int]]] = field(default_factory=list)
    left_out: int = 0
    is_mended: bool = False

    def of_call(self, spans: list[Span], call: int) -> list[Span]:
        return [span for span in spans if span.call == call]

    def work_by_device(self, call: int) -> dict[str, list[Span]]:
        """The device work of a call, by the number of the device."""
        by_device: dict[str, list[Span]] = {}
        for span in self.of_call(self.work, call):
            by_device.setdefault(str(span.arguments.get("device", 0)), []).append(span)
        return by_device


def read_recording(path: Path) -> Recording:
    """The recording in an uncompressed Chrome trace."""
    raw: dict[str, list[_Timed]] = {"call": [], "work": [], "runtime": [], "operation": []}
    memory, faults = [], 0
    with path.open(encoding="utf-8", errors="replace") as file:
        reader = TraceReader(iter(lambda: file.read(_CHUNK), ""))
        for event in reader:
            try:
                kind = _kind_of(event)
                if kind == "memory":
                    memory.append(_memory(event))
                elif kind is not None:
                    raw[kind].append(_timed(event))
            except (KeyError, TypeError, ValueError, OverflowError):
                faults += 1
    calls = sorted((_span(event, index) for index, event in enumerate(raw["call"])), key=lambda call: call.start)
    starts = [call.start for call in calls]

    def call_at(time: float) -> int | None:
        """The index of the call during which something happened; calls do not overlap."""
        index = bisect_right(starts, time) - 1
        return index if index >= 0 and time <= calls[index].end else None

    runtime = [_span(event, call_at(event.start)) for event in raw["runtime"]]
    launched_by = {span.arguments.get("correlation"): span.call for span in runtime}
    # Device work belongs to the call that launched it, however late it runs.
    work = [_span(event, launched_by.get(event.arguments.get("correlation"))) for event in raw["work"]]
    return Recording(
        _device(path),
        calls,
        sorted(work, key=lambda span: span.start),
        runtime,
        [_span(event, call_at(event.start)) for event in raw["operation"]],
        sorted(memory, key=lambda entry: entry[0]),
        reader.left_out + faults,
        reader.left_out + reader.mended > 0,
    )


def _kind_of(event: dict[str, Any]) -> str | None:
    """Which table an event belongs to; None where no table needs it."""
    category = event.get("cat")
    if category in DEVICE_CATEGORIES:
        return "work"
    if category in RUNTIME_CATEGORIES:
        return "runtime"
    if category == "cpu_op":
        return "operation"
    if event.get("name") == "[memory]":
        return "memory"
    return "call" if category == "user_annotation" and event["name"] == CALL else None


def join_traces(parts: Sequence[Path], joined: Path) -> None:
    """Writes one Chrome trace with the events of all parts, which one process recorded one after the other.

    Their clocks and correlation ids are the same, so the head of the first holds for all. What cannot be read is left
    out, and what can be mended is.
    """
    with parts[0].open(encoding="utf-8", errors="replace") as file:
        head = file.read(_CHUNK)
    with joined.open("w", encoding="utf-8") as target:
        target.write(head[: head.index(EVENTS)] + EVENTS + ": [\n")
        separator = ""
        for part in parts:
            with part.open(encoding="utf-8", errors="replace") as source:
                for event in TraceReader(iter(partial(source.read, _CHUNK), "")):
                    target.write(separator + json.dumps(event))
                    separator = ",\n"
            part.unlink()
        target.write("\n]}\n")


@dataclass(frozen=True, slots=True)
class _Timed:
    name: str
    start: float
    duration: float
    arguments: dict[str, Any]
    thread: Any


def _timed(event: dict[str, Any]) -> _Timed:
    """ValueError for times that no clock shows."""
    times = read_times(event)
    if times is None:
        raise ValueError
    name = _RUNTIME_NAMES.get(event["name"], event["name"])
    return _Timed(str(name), *times, arguments_of(event), event.get("tid"))


def _span(event: _Timed, call: int | None) -> Span:
    return Span(event.name, event.start, event.duration, call, event.arguments, event.thread)


def _memory(event: dict[str, Any]) -> tuple[float, int, int, tuple[int, int]]:
    arguments = event["args"]
    where = (int(arguments["Device Type"]), int(arguments["Device Id"]))
    return float(event["ts"]) * 1e3, int(arguments["Total Allocated"]), int(arguments["Bytes"]), where


def _device(path: Path) -> dict[str, Any]:
    """The properties of the first device in the head of the trace; empty without one."""
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.read(_CHUNK)
    start = head.find('"deviceProperties"')
    if start < 0:
        return {}
    try:
        devices, _ = json.JSONDecoder().raw_decode(head, head.index("[", start))
    except ValueError:
        return {}
    return dict(devices[0]) if devices else {}
