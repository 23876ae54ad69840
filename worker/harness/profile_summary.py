"""Summarises a recording beyond its tables: launch cost, idle gaps of the device, and memory over time.

`summarize` returns this JSON:
sequence   [[name, ns], …] of one call in order, see trace_tables.sequence
survey     see trace_tables.survey
launch     {"host_ns", "launch_ns", "launches", "device_ns"} per call while profiled, GPUs only
gaps       {"window_ns", "idle_ns", "share", "count", "largest": [{"ns", "after", "before", "operator"}]}, GPUs only
memory     {"device", "base_bytes", "peak_bytes", "allocations", "allocated_bytes", "points": [[ns, bytes], …]}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .trace_events import Recording, Span
from .trace_tables import sequence, survey

LARGEST_GAPS = 8
MOST_POINTS = 400
_DEVICE_TYPES = {0: "cpu", 1: "cuda"}
_LAUNCHES = ("Launch", "Memcpy", "Memset")


def summarize(recording: Recording, device_kind: str) -> dict[str, Any]:
    """The summary of a recording (see the top of this module); empty parts are left out."""
    summary: dict[str, Any] = {"calls": len(recording.calls), "sequence": sequence(recording, device_kind)}
    if device_kind != "cpu":
        summary |= {"survey": survey(recording), "launch": launches(recording), "gaps": idle_gaps(recording)}
    summary["memory"] = memory_timeline(recording, device_kind)
    return {name: value for name, value in summary.items() if value not in (None, [], {})}


def launches(recording: Recording) -> dict[str, Any]:
    """Mean host time, launch time, number of launches and device time per call; see the top of this module."""
    count = len(recording.calls)
    if not count:
        return {}
    calls_of_runtime = [span for span in recording.runtime if span.call is not None]
    launch_spans = [span for span in calls_of_runtime if any(word in span.name for word in _LAUNCHES)]
    busy = [_busy(recording.of_call(recording.work, index)) for index in range(count)]
    return {
        "host_ns": sum(call.duration for call in recording.calls) / count,
        "launch_ns": sum(span.duration for span in launch_spans) / count,
        "launches": len(launch_spans) / count,
        "device_ns": sum(busy) / count,
    }


def idle_gaps(recording: Recording) -> dict[str, Any]:
    """Gaps between the first and the last device work of a call in which no stream was busy."""
    operators = {span.arguments.get("External id"): span.name for span in recording.operations}
    window, idle = 0.0, 0.0
    gaps: list[dict[str, Any]] = []
    for index in range(len(recording.calls)):
        work = recording.of_call(recording.work, index)
        if not work:
            continue
        last = work[0]
        for span in work[1:]:
            if span.start > last.end:
                operator = operators.get(span.arguments.get("External id"))
                gap = {"ns": span.start - last.end, "after": last.name, "before": span.name, "operator": operator}
                gaps.append(gap)
                idle += span.start - last.end
            last = span if span.end > last.end else last
        window += last.end - work[0].start
    if not window:
        return {}
    largest = sorted(gaps, key=lambda gap: -gap["ns"])[:LARGEST_GAPS]
    return {"window_ns": window, "idle_ns": idle, "share": idle / window, "count": len(gaps), "largest": largest}


def memory_timeline(recording: Recording, device_kind: str) -> dict[str, Any]:
    """Bytes allocated on the measured device over the recorded calls.

    Points are [nanoseconds since the start of the first call, bytes].
    """
    if not recording.calls:
        return {}
    start, end = recording.calls[0].start, recording.calls[-1].end
    entries = [
        entry
        for entry in recording.memory
        if _DEVICE_TYPES.get(entry[3][0]) == device_kind and start <= entry[0] <= end
    ]
    if not entries:
        return {}
    base = entries[0][1] - entries[0][2]
    points = [[0.0, base], *([when - start, total] for when, total, _, _ in entries)]
    allocated = [change for _, _, change, _ in entries if change > 0]
    return {
        "device": device_kind,
        "base_bytes": base,
        "peak_bytes": max(total for _, total in points),
        "allocations": len(allocated),
        "allocated_bytes": sum(allocated),
        "points": _thinned(points),
    }


def launch_sentence(launch: dict[str, Any], issue_ns: float) -> tuple[bool, str]:
    """(whether the call is launch-bound, a sentence that says why).

    issue_ns: host time to issue a call without the profiler, which makes the host several times slower.
    """
    device_ns, count = launch["device_ns"], launch["launches"]
    is_bound = issue_ns > device_ns
    verdict = "the device waits for the host" if is_bound else "the host is ahead of the device"
    times = f"The host issues a call in {_us(issue_ns)} and the device works {_us(device_ns)}: {verdict}."
    plural = "launch or copy takes" if count == 1 else "launches or copies take"
    profiled = f"{count:g} {plural} {_us(launch['launch_ns'])} of {_us(launch['host_ns'])}"
    return is_bound, f"{times} While profiled, {profiled}."


def _busy(work: Iterable[Span]) -> float:
    """Nanoseconds in which at least one of the spans was running; they must be sorted by start."""
    total, end = 0.0, float("-inf")
    for span in work:
        total += max(0.0, span.end - max(span.start, end))
        end = max(end, span.end)
    return total


def _thinned(points: list[list[float]]) -> list[list[float]]:
    """At most MOST_POINTS points: the highest and the last of every stretch, so that no peak is lost."""
    if len(points) <= MOST_POINTS:
        return points
    length = -(-2 * len(points) // MOST_POINTS)
    kept: list[list[float]] = []
    for start in range(0, len(points), length):
        stretch = points[start : start + length]
        highest = max(stretch, key=lambda point: point[1])
        kept += [highest] if highest is stretch[-1] else [highest, stretch[-1]]
    return kept


def _us(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e3:.1f} µs"
