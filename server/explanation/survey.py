"""The survey of kernel launches over several traces: torch operator → kernel, with its launch configuration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from warpwatch.db.reads.query import Session
from warpwatch.db.reads.traces import TraceListRow, read_summaries


@dataclass(frozen=True, slots=True)
class SurveyRow:
    """Launches of one kernel by one torch operator in one trace. total_ns: over all recorded calls."""

    trace_id: int
    operator: str
    variant: str
    case: str
    commit_sha: str
    device_key: str
    torch_operator: str
    kernel: str
    launches: int
    total_ns: float
    grid: list[int]
    block: list[int]
    registers: int | None
    shared_bytes: int | None


def read_survey(session: Session, traces: Iterable[TraceListRow]) -> list[SurveyRow]:
    """The rows of all traces, in the order of the traces, the most expensive first within each."""
    listed = list(traces)
    summaries = read_summaries(session, [trace.id for trace in listed])
    return [
        _row(trace, entry)
        for trace in listed
        for entry in sorted(summaries.get(trace.id, {}).get("survey", []), key=lambda entry: -entry["total_ns"])
    ]


def _row(trace: TraceListRow, entry: dict[str, Any]) -> SurveyRow:
    return SurveyRow(
        trace_id=trace.id,
        operator=trace.operator,
        variant=trace.variant,
        case=trace.case,
        commit_sha=trace.commit_sha,
        device_key=trace.device_key,
        torch_operator=entry.get("operator") or "",
        kernel=entry["kernel"],
        launches=entry["launches"],
        total_ns=entry["total_ns"],
        grid=entry.get("grid") or [],
        block=entry.get("block") or [],
        registers=entry.get("registers"),
        shared_bytes=entry.get("shared_bytes"),
    )
