"""The tables of a recording: what ran and for how long, which operator launched it, and in what order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from warpwatch.contract.measurement import TraceKernel

from .occupancy import occupancy
from .trace_events import Recording, Span

LONGEST_SEQUENCE = 500
"""Steps of one call whose order is kept."""
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
class _Row:
    calls: int = 0
    total: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    shapes: set[str] = field(default_factory=set)


def kernel_table(recording: Recording, device_kind: str) -> list[TraceKernel]:
    """What ran, by total time: kernels and copies with how they were launched; on a CPU torch operators, less those
    inside them."""
    rows: dict[str, _Row] = {}
    for span, self_ns in steps(recording, device_kind):
        row = rows.setdefault(span.name, _Row(details=_details(recording, span, device_kind)))
        row.calls += 1
        row.total += self_ns
        row.shapes.add(str((span.arguments.get("grid"), span.arguments.get("block"))))
    total = sum(row.total for row in rows.values()) or 1.0
    return [
        TraceKernel(name, row.calls, row.total, row.total / row.calls, row.total / total, _told(row))
        for name, row in sorted(rows.items(), key=lambda item: -item[1].total)
    ]


def runtime_calls(recording: Recording) -> dict[str, float]:
    """CUDA runtime calls per recorded call, by name."""
    counts = Counter(span.name for span in recording.runtime if span.call is not None)
    return {name: count / len(recording.calls) for name, count in sorted(counts.items())}


def sequence(recording: Recording, device_kind: str) -> list[list[Any]]:
    """[name, nanoseconds] of every step of one call in order, the mean over the calls; empty when the calls differ or
    are long."""
    calls: dict[int, list[tuple[str, float]]] = {}
    for span, self_ns in sorted(steps(recording, device_kind), key=lambda step: step[0].start):
        if span.call is not None:
            calls.setdefault(span.call, []).append((span.name, self_ns))
    orders = [[name for name, _ in steps_] for steps_ in calls.values()]
    if not orders or len(orders[0]) > LONGEST_SEQUENCE or any(order != orders[0] for order in orders):
        return []
    return [[one[0][0], sum(ns for _, ns in one) / len(one)] for one in zip(*calls.values(), strict=True)]


def survey(recording: Recording) -> list[dict[str, Any]]:
    """Which torch operator launched which kernel, how, how often and for how long; the most expensive first."""
    operators = {span.arguments.get("External id"): span for span in recording.operations}
    rows: dict[str, dict[str, Any]] = {}
    for span in recording.work:
        operation = operators.get(span.arguments.get("External id"))
        facts = {ours: span.arguments[theirs] for theirs, ours in _FACTS.items() if theirs in span.arguments}
        shapes = operation.arguments.get("Input Dims") if operation else None
        row: dict[str, Any] = {
            "operator": operation.name if operation else None,
            "shapes": shapes,
            "kernel": span.name,
            **{name: facts.get(name) for name in ("grid", "block", "registers", "shared_bytes")},
        }
        kept = rows.setdefault(str(row), {**row, "launches": 0, "total_ns": 0.0})
        kept["launches"] += 1
        kept["total_ns"] += span.duration
    return sorted(rows.values(), key=lambda row: -row["total_ns"])[:_SURVEYED]


def steps(recording: Recording, device_kind: str) -> Iterator[tuple[Span, float]]:
    """(step, its own nanoseconds): device work, or on a CPU torch operators less the operators inside them."""
    if device_kind != "cpu":
        yield from ((span, span.duration) for span in recording.work)
        return
    open_ones: list[list[Any]] = []
    thread = None
    for span in sorted(recording.operations, key=lambda one: (str(one.thread), one.start, -one.duration)):
        while open_ones and (span.thread != thread or span.start >= open_ones[-1][0].end):
            yield tuple(open_ones.pop())
        if open_ones:
            open_ones[-1][1] -= span.duration
        open_ones.append([span, span.duration])
        thread = span.thread
    while open_ones:
        yield tuple(open_ones.pop())


def _details(recording: Recording, span: Span, device_kind: str) -> dict[str, Any]:
    if device_kind == "cpu":
        shapes = span.arguments.get("Input Dims")
        return {"shapes": shapes} if shapes else {}
    facts: dict[str, Any] = {
        ours: span.arguments[theirs] for theirs, ours in _FACTS.items() if theirs in span.arguments
    }
    if "grid" in facts and "block" in facts:
        found = occupancy(
            recording.device, facts["grid"], facts["block"], facts.get("registers", 0), facts.get("shared_bytes", 0)
        )
        if found is not None:
            facts |= {
                "theoretical_occupancy": round(found.share, 4),
                "blocks_per_sm": found.blocks,
                "occupancy_limit": found.limit,
                "waves": round(found.waves, 3),
            }
    return facts


def _told(row: _Row) -> dict[str, Any]:
    """The first launch's details; how many kinds of launches there are when there are several."""
    return row.details | ({"launch_shapes": len(row.shapes)} if len(row.shapes) > 1 else {})
