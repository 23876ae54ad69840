"""The tables of a recording: kernels with their total time, the operators that launched them, and their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from warpwatch.contract.measurement import TraceKernel

from .occupancy import occupancy
from .trace_events import Recording, Span

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
