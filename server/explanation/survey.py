"""The survey of kernel launches over several traces: torch operator → kernel, with its launch configuration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from warpwatch.db.reads.query import Session
from warpwatch.db.traces import TraceListRow, read_summaries
from warpwatch.server.explanation.runtime_calls import MOST_COMPRESSED, MOST_FILES, launches_of
from warpwatch.server.explanation.trace_files import load_trace


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


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """Launches of one kernel by one torch operator over several traces. shapes: grid and block, as launched."""

    torch_operator: str
    kernel: str
    launches: int
    total_ns: float
    traces: int
    shapes: list[tuple[list[int], list[int]]]
    registers: int | None
    shared_bytes: int | None


@dataclass(frozen=True, slots=True)
class IdleRow:
    """A gap in which the device was idle between two kernels of one call. torch_operator: launched what came after."""

    trace_id: int
    operator: str
    variant: str
    case: str
    commit_sha: str
    device_key: str
    idle_ns: float
    after: str
    before: str
    torch_operator: str


def read_idle(session: Session, traces: Iterable[TraceListRow]) -> list[IdleRow]:
    """The largest gaps of each trace, the longest of all first."""
    listed = list(traces)
    summaries = read_summaries(session, [trace.id for trace in listed])
    rows = [
        IdleRow(
            trace.id,
            trace.operator,
            trace.variant,
            trace.case,
            trace.commit_sha,
            trace.device_key,
            gap["ns"],
            gap["after"],
            gap["before"],
            gap.get("operator") or "",
        )
        for trace in listed
        for gap in (summaries.get(trace.id, {}).get("gaps") or {}).get("largest", [])
    ]
    return sorted(rows, key=lambda row: -row.idle_ns)


def in_all_traces(rows: Iterable[SurveyRow]) -> list[LaunchRow]:
    """The rows of a survey added up over its traces, the most expensive first."""
    groups: dict[tuple[str, str], list[SurveyRow]] = {}
    for row in rows:
        groups.setdefault((row.torch_operator, row.kernel), []).append(row)
    launches = [
        LaunchRow(
            torch_operator,
            kernel,
            sum(row.launches for row in group),
            sum(row.total_ns for row in group),
            len({row.trace_id for row in group}),
            sorted({(tuple(row.grid), tuple(row.block)): (row.grid, row.block) for row in group}.values()),
            max((row.registers for row in group if row.registers is not None), default=None),
            max((row.shared_bytes for row in group if row.shared_bytes is not None), default=None),
        )
        for (torch_operator, kernel), group in groups.items()
    ]
    return sorted(launches, key=lambda row: -row.total_ns)


def read_survey(session: Session, traces: Iterable[TraceListRow]) -> list[SurveyRow]:
    """The rows of all traces, in the order of the traces, the most expensive first within each. Older traces have no
    survey in their summary; the files of the first MOST_FILES of them are read."""
    listed = list(traces)
    summaries = read_summaries(session, [trace.id for trace in listed])
    older = [trace for trace in listed if "survey" not in summaries.get(trace.id, {})]
    surveys = {id_: summary.get("survey", []) for id_, summary in summaries.items()}
    for trace in [trace for trace in older if trace.compressed_size <= MOST_COMPRESSED][:MOST_FILES]:
        surveys[trace.id] = launches_of(load_trace(session, trace.id))
    return [
        _row(trace, entry)
        for trace in listed
        for entry in sorted(surveys.get(trace.id, []), key=lambda entry: -entry["total_ns"])
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
