"""Summarises a recording beyond its tables: launch cost, idle gaps of the device, and memory over time.

`summarize` returns this JSON:
sequence   [[name, ns], …] of one call in order, see `sequence`
survey     see `survey`
launch     {"host_ns", "launch_ns", "launches", "device_ns", "devices_ns"} per call while profiled, GPUs only;
           device_ns is of the busiest device, devices_ns by device where there are several
gaps       {"window_ns", "idle_ns", "share", "count", "largest": [{"ns", "after", "before", "operator", "device"}]},
           GPUs only; sums over devices, and "device" where there are several
memory     {"device", "base_bytes", "peak_bytes", "allocations", "allocated_bytes", "points": [[ns, bytes], …]}
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

from warpwatch.contract.measurement import TraceKernel

from ..timers.kernel import union_ns
from .events import Recording, Span

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
    busy: dict[str, float] = defaultdict(float)
    for index in range(count):
        for device, work in recording.work_by_device(index).items():
            busy[device] += union_ns([(span.start, span.end) for span in work])
    devices = {device: total / count for device, total in sorted(busy.items())}
    return {
        "host_ns": sum(call.duration for call in recording.calls) / count,
        "launch_ns": sum(span.duration for span in launch_spans) / count,
        "launches": len(launch_spans) / count,
        "device_ns": max(devices.values(), default=0.0),
    } | ({"devices_ns": devices} if len(devices) > 1 else {})


def idle_gaps(recording: Recording) -> dict[str, Any]:
    """Gaps between the first and the last work of a call on a device, in which none of its streams was busy."""
    operators = {span.arguments.get("External id"): span.name for span in recording.operations}
    window, idle = 0.0, 0.0
    gaps: list[dict[str, Any]] = []
    worked = [item for index in range(len(recording.calls)) for item in recording.work_by_device(index).items()]
    for device, work in worked:
        last = work[0]
        for span in work[1:]:
            if span.start > last.end:
                operator = operators.get(span.arguments.get("External id"))
                gap = {"ns": span.start - last.end, "after": last.name, "before": span.name, "operator": operator}
                gaps.append(gap | {"device": device})
                idle += span.start - last.end
            last = span if span.end > last.end else last
        window += last.end - work[0].start
    if not window:
        return {}
    largest = sorted(gaps, key=lambda gap: -gap["ns"])[:LARGEST_GAPS]
    if len({device for device, _ in worked}) < 2:
        largest = [{key: value for key, value in gap.items() if key != "device"} for gap in largest]
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


LONGEST_SEQUENCE = 500
"""A call with more steps has no sequence."""
_SURVEYED = 200
_FACTS = {
    "grid": "grid",
    "block": "block",
    "registers per thread": "registers",
    "shared memory": "shared_bytes",
    "est. achieved occupancy %": "occupancy_percent",
    "bytes": "bytes",
}


@dataclass(slots=True)
class _KernelTotal:
    """The sums of one kernel name. details: those of its first launch. shapes: its different launch shapes."""

    calls: int = 0
    total: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    shapes: set[str] = field(default_factory=set)


def kernel_table(recording: Recording, device_kind: str) -> list[TraceKernel]:
    """Device work by total time, with launch details; on a CPU torch operators without the operators inside them."""
    totals: dict[str, _KernelTotal] = {}
    for span, self_ns in steps(recording, device_kind):
        row = totals.setdefault(span.name, _KernelTotal(details=_details(recording, span, device_kind)))
        row.calls += 1
        row.total += self_ns
        row.shapes.add(str((span.arguments.get("grid"), span.arguments.get("block"))))
    all_ns = sum(row.total for row in totals.values()) or 1.0
    table = []
    for name, row in sorted(totals.items(), key=lambda item: -item[1].total):
        details = row.details | ({"launch_shapes": len(row.shapes)} if len(row.shapes) > 1 else {})
        table.append(TraceKernel(name, row.calls, row.total, row.total / row.calls, row.total / all_ns, details))
    return table


def runtime_calls(recording: Recording) -> dict[str, float]:
    """CUDA runtime calls per recorded call, by name."""
    counts = Counter(span.name for span in recording.runtime if span.call is not None)
    return {name: count / len(recording.calls) for name, count in sorted(counts.items())}


def sequence(recording: Recording, device_kind: str) -> list[list[Any]]:
    """[name, mean nanoseconds] of every step of a call in order; empty when calls differ or have over 500 steps."""
    calls: dict[int, list[tuple[str, float]]] = {}
    for span, self_ns in sorted(steps(recording, device_kind), key=lambda step: step[0].start):
        if span.call is not None:
            calls.setdefault(span.call, []).append((span.name, self_ns))
    orders = [[name for name, _ in call] for call in calls.values()]
    if not orders or len(orders[0]) > LONGEST_SEQUENCE or any(order != orders[0] for order in orders):
        return []
    return [[step[0][0], sum(ns for _, ns in step) / len(step)] for step in zip(*calls.values(), strict=True)]


def survey(recording: Recording) -> list[dict[str, Any]]:
    """Kernels by the torch operator that launched them, with launch shape, count and total time; longest first."""
    operators = {span.arguments.get("External id"): span for span in recording.operations}
    rows: dict[str, dict[str, Any]] = {}
    for span in recording.work:
        operation = operators.get(span.arguments.get("External id"))
        facts = {name: span.arguments[key] for key, name in _FACTS.items() if key in span.arguments}
        shapes = operation.arguments.get("Input Dims") if operation else None
        row: dict[str, Any] = {
            "operator": operation.name if operation else None,
            "shapes": shapes,
            "kernel": span.name,
            **{name: facts.get(name) for name in ("grid", "block", "registers", "shared_bytes")},
        }
        totals = rows.setdefault(str(row), {**row, "launches": 0, "total_ns": 0.0})
        totals["launches"] += 1
        totals["total_ns"] += span.duration
    return sorted(rows.values(), key=lambda row: -row["total_ns"])[:_SURVEYED]


def steps(recording: Recording, device_kind: str) -> Iterator[tuple[Span, float]]:
    """(step, nanoseconds without the steps inside it): device work, or on a CPU torch operators."""
    if device_kind != "cpu":
        yield from ((span, span.duration) for span in recording.work)
        return
    enclosing: list[list[Any]] = []
    thread = None
    for span in sorted(recording.operations, key=lambda span: (str(span.thread), span.start, -span.duration)):
        while enclosing and (span.thread != thread or span.start >= enclosing[-1][0].end):
            yield tuple(enclosing.pop())
        if enclosing:
            enclosing[-1][1] -= span.duration
        enclosing.append([span, span.duration])
        thread = span.thread
    while enclosing:
        yield tuple(enclosing.pop())


def _details(recording: Recording, span: Span, device_kind: str) -> dict[str, Any]:
    if device_kind == "cpu":
        shapes = span.arguments.get("Input Dims")
        return {"shapes": shapes} if shapes else {}
    facts: dict[str, Any] = {name: span.arguments[key] for key, name in _FACTS.items() if key in span.arguments}
    if "grid" in facts and "block" in facts:
        registers, shared_bytes = facts.get("registers", 0), facts.get("shared_bytes", 0)
        theoretical = occupancy(recording.device, facts["grid"], facts["block"], registers, shared_bytes)
        if theoretical is not None:
            facts |= {
                "theoretical_occupancy": round(theoretical.share, 4),
                "blocks_per_sm": theoretical.blocks,
                "occupancy_limit": theoretical.limit,
                "waves": round(theoretical.waves, 3),
            }
    return facts


_REGISTER_UNIT, _WARP_UNIT, _SHARED_UNIT = 256, 4, 128
"""Allocation units since compute capability 7.0: registers per warp, warps, and bytes of shared memory."""
_RESERVED_SHARED = 1024
"""Bytes of shared memory that CUDA reserves in every block, from compute capability 8.0 on."""
_BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24}
_MOST_BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Theoretical occupancy of one launch.

    share: resident warps over the maximum. blocks: resident blocks per multiprocessor. limit: the resource that runs
    out first. waves: how often the grid fills all multiprocessors; just above an integer, most of them idle at the end.
    """

    share: float
    blocks: int
    limit: str
    waves: float


def occupancy(
    device: dict[str, Any], grid: Sequence[int], block: Sequence[int], registers: int, shared_bytes: int
) -> Occupancy | None:
    """The occupancy of a launch; None where properties of the device are missing.

    device: its properties as torch.profiler writes them. registers: per thread.
    """
    try:
        warp_size, processors = int(device["warpSize"]), int(device["numSms"])
        all_registers = int(device["regsPerMultiprocessor"])
        all_shared = int(device["sharedMemPerMultiprocessor"])
        all_threads = int(device["maxThreadsPerMultiprocessor"])
        capability = (int(device["computeMajor"]), int(device["computeMinor"]))
    except (KeyError, TypeError, ValueError):
        return None
    warps, most_warps = ceil(prod(block) / warp_size), all_threads // warp_size
    if min(warps, most_warps, processors) <= 0:
        return None
    limits = {"warps": most_warps // warps, "blocks": _BLOCKS.get(capability, _MOST_BLOCKS)}
    if registers > 0:
        warp_registers = _round_up(registers * warp_size, _REGISTER_UNIT)
        limits["registers"] = all_registers // warp_registers // _WARP_UNIT * _WARP_UNIT // warps
    if shared_bytes > 0:
        reserved = _RESERVED_SHARED if capability >= (8, 0) else 0
        limits["shared memory"] = all_shared // _round_up(shared_bytes + reserved, _SHARED_UNIT)
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    waves = prod(grid) / (blocks * processors) if blocks else 0.0
    return Occupancy(blocks * warps / most_warps, blocks, limit, waves)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
