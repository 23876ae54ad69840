"""What a recording says beyond its tables: who waits for whom, when the device idles, how memory goes up and down.

`summarize` lays it out as JSON:
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
    """See the top of this module; parts that the recording says nothing about are left out."""
    found: dict[str, Any] = {"calls": len(recording.calls), "sequence": sequence(recording, device_kind)}
    if device_kind != "cpu":
        found |= {"survey": survey(recording), "launch": launches(recording), "gaps": idle_gaps(recording)}
    found["memory"] = memory_timeline(recording, device_kind)
    return {name: value for name, value in found.items() if value not in (None, [], {})}


def launches(recording: Recording) -> dict[str, Any]:
    """What issuing a call costs the host, and what the device does for it, on average over the calls."""
    count = len(recording.calls)
    if not count:
        return {}
    starts = [
        span for span in recording.runtime if span.call is not None and any(word in span.name for word in _LAUNCHES)
    ]
    busy = [_busy(recording.of_call(recording.work, index)) for index in range(count)]
    return {
        "host_ns": sum(call.duration for call in recording.calls) / count,
        "launch_ns": sum(span.duration for span in starts) / count,
        "launches": len(starts) / count,
        "device_ns": sum(busy) / count,
    }


def idle_gaps(recording: Recording) -> dict[str, Any]:
    """Times between a call's first and last work on the device at which no stream was at work."""
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
                gaps.append(
                    {"ns": span.start - last.end, "after": last.name, "before": span.name, "operator": operator}
                )
                idle += span.start - last.end
            last = max(last, span, key=lambda one: one.end)
        window += last.end - work[0].start
    if not window:
        return {}
    largest = sorted(gaps, key=lambda gap: -gap["ns"])[:LARGEST_GAPS]
    return {"window_ns": window, "idle_ns": idle, "share": idle / window, "count": len(gaps), "largest": largest}


def memory_timeline(recording: Recording, device_kind: str) -> dict[str, Any]:
    """Bytes allocated on the measured device over the recorded calls; points are nanoseconds since the first call
    began."""
    if not recording.calls:
        return {}
    start, end = recording.calls[0].start, recording.calls[-1].end
    own = [
        entry
        for entry in recording.memory
        if _DEVICE_TYPES.get(entry[3][0]) == device_kind and start <= entry[0] <= end
    ]
    if not own:
        return {}
    base = own[0][1] - own[0][2]
    points = [[0.0, base], *([when - start, total] for when, total, _, _ in own)]
    return {
        "device": device_kind,
        "base_bytes": base,
        "peak_bytes": max(total for _, total in points),
        "allocations": sum(1 for _, _, change, _ in own if change > 0),
        "allocated_bytes": sum(change for _, _, change, _ in own if change > 0),
        "points": _thinned(points),
    }


def launch_sentence(launch: dict[str, Any], issue_ns: float) -> tuple[bool, str]:
    """(launch-bound or not, why).

    issue_ns: what the host takes to issue a call without the profiler, which slows it severalfold.
    """
    device, count = launch["device_ns"], launch["launches"]
    bound = issue_ns > device
    verdict = "the device waits for the host" if bound else "the host is ahead of the device"
    parts = f"{count:g} launch{'es' if count != 1 else ''} or copies take {_us(launch['launch_ns'])} of {_us(launch['host_ns'])}"
    return (
        bound,
        f"The host issues a call in {_us(issue_ns)} and the device works {_us(device)}: {verdict}. While profiled, {parts}.",
    )


def _busy(work: Iterable[Span]) -> float:
    """Time during which at least one of the spans, sorted by start, was going on."""
    total, end = 0.0, float("-inf")
    for span in work:
        total += max(0.0, span.end - max(span.start, end))
        end = max(end, span.end)
    return total


def _thinned(points: list[list[float]]) -> list[list[float]]:
    """At most MOST_POINTS of the points, the highest and the last of every stretch, so that no peak is lost."""
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
