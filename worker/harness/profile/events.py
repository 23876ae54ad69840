"""Reads a Chrome trace of torch.profiler in pieces and keeps the events that the tables need. Durations are in ns.

Every event is assigned to the recorded call that it belongs to; each call is an annotation of the trace. Outside the
calls there is only the harness, which waits for the device.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CALL = "warpwatch call"
"""The annotation around each recorded call."""
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME_CATEGORIES = ("cuda_runtime", "cuda_driver")
_RUNTIME_NAMES = {"INVALID": "unknown"}
"""The profiler's name for functions newer than itself, and ours."""
_EVENTS = '"traceEvents"'
_CHUNK = 2**20
_BETWEEN = re.compile(r"[ \n\r\t,]*")
"""The characters between two events. The pattern also matches the empty string, so it matches everywhere."""


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

    def of_call(self, spans: list[Span], call: int) -> list[Span]:
        return [span for span in spans if span.call == call]


def read_recording(path: Path) -> Recording:
    """The recording in an uncompressed Chrome trace."""
    raw: dict[str, list[dict[str, Any]]] = {"call": [], "work": [], "runtime": [], "operation": [], "memory": []}
    for event in events_of(path):
        category = event.get("cat")
        if category in DEVICE_CATEGORIES:
            raw["work"].append(event)
        elif category in RUNTIME_CATEGORIES:
            raw["runtime"].append(event)
        elif category == "cpu_op":
            raw["operation"].append(event)
        elif category == "user_annotation" and event["name"] == CALL:
            raw["call"].append(event)
        elif event.get("name") == "[memory]":
            raw["memory"].append(event)
    calls = sorted((_span(event, index) for index, event in enumerate(raw["call"])), key=lambda call: call.start)
    starts = [call.start for call in calls]

    def call_at(time: float) -> int | None:
        """The index of the call during which something happened; calls do not overlap."""
        index = bisect_right(starts, time) - 1
        return index if index >= 0 and time <= calls[index].end else None

    runtime = [_span(event, call_at(_ns(event["ts"]))) for event in raw["runtime"]]
    launched_by = {span.arguments.get("correlation"): span.call for span in runtime}
    # Device work belongs to the call that launched it, however late it runs.
    work = [_span(event, launched_by.get(event.get("args", {}).get("correlation"))) for event in raw["work"]]
    operations = [_span(event, call_at(_ns(event["ts"]))) for event in raw["operation"]]
    memory = sorted((_memory(event) for event in raw["memory"]), key=lambda entry: entry[0])
    return Recording(_device(path), calls, sorted(work, key=lambda span: span.start), runtime, operations, memory)


def events_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yields every trace event of a Chrome trace, read in pieces of 1 MiB."""
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8", errors="replace") as file:
        text, place = _skip_to_events(file.read(_CHUNK), file), 0
        while True:
            place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]
            if text.startswith("]", place):
                return
            try:
                event, place = decoder.raw_decode(text, place)
            except json.JSONDecodeError:
                more = file.read(_CHUNK)
                if not more:
                    return
                text, place = text[place:] + more, 0
                continue
            yield event


def join_traces(parts: Sequence[Path], joined: Path) -> None:
    """Writes one Chrome trace with the events of all parts, which one process recorded one after the other.

    Their clocks and correlation ids are the same, so the head of the first holds for all.
    """
    if len(parts) == 1:
        parts[0].rename(joined)
        return
    with parts[0].open(encoding="utf-8", errors="replace") as file:
        head = file.read(_CHUNK)
    with joined.open("w", encoding="utf-8") as file:
        file.write(head[: head.index(_EVENTS)] + _EVENTS + ": [\n")
        separator = ""
        for part in parts:
            for event in events_of(part):
                file.write(separator + json.dumps(event))
                separator = ",\n"
            part.unlink()
        file.write("\n]}\n")


def _span(event: dict[str, Any], call: int | None) -> Span:
    name = _RUNTIME_NAMES.get(event["name"], event["name"])
    return Span(name, _ns(event["ts"]), _ns(event["dur"]), call, event.get("args", {}), event.get("tid"))


def _memory(event: dict[str, Any]) -> tuple[float, int, int, tuple[int, int]]:
    arguments = event["args"]
    where = (int(arguments["Device Type"]), int(arguments["Device Id"]))
    return _ns(event["ts"]), int(arguments["Total Allocated"]), int(arguments["Bytes"]), where


def _ns(microseconds: Any) -> float:
    return float(microseconds) * 1e3


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


def _skip_to_events(text: str, file: Any) -> str:
    while (start := text.find(_EVENTS)) < 0:
        more = file.read(_CHUNK)
        if not more:
            return "]"
        text += more
    return text[text.index("[", start) + 1 :]
