"""Collects the evidence for the cause of a change: sources, machine code, kernels, host conditions, errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warpwatch.db.reads.causes import BenchEvidence, CodeEvidence, ErrorEvidence, read_evidence
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.launched import LaunchedPair
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import RegressionDetail
from warpwatch.db.traces import read_trace
from warpwatch.server.explanation.alignment import Alignment, align_traces
from warpwatch.server.history.diffs import SourceDiff, read_source_diff
from warpwatch.server.verdicts.thresholds import BUSY_LOAD
from warpwatch.settings import Settings


@dataclass(frozen=True, slots=True)
class Circumstance:
    """One host reading before and after the benchmark at base and head; None where it was not recorded."""

    name: str
    base_before: Any
    base_after: Any
    head_before: Any
    head_after: Any


@dataclass(frozen=True, slots=True)
class CauseView:
    """The evidence; a part without data is None or says why.

    launched: of the worst series. kernels: the trace of the head compared with the base's. circumstances: clocks,
    temperature, throttling, CPU load.
    """

    sources: SourceDiff
    code: CodeEvidence | None
    launched: LaunchedPair | None
    kernels: Alignment | None
    bench: BenchEvidence | None
    circumstances: list[Circumstance]
    errors: ErrorEvidence | None


BUSY_FACTS = ("load", "cores", "steal", "idle", "pressure")
"""Readings that say how busy a host is."""


@dataclass(frozen=True, slots=True)
class BusyHost:
    """A host that ran more tasks than it has cores while a benchmark of its own was taken."""

    load: float
    cores: int
    at_base: bool
    at_head: bool


def find_busy_host(bench: BenchEvidence | None) -> BusyHost | None:
    """The highest load around the benchmarks at base and head; None where the host was not busy, or did not tell."""
    worst: tuple[float, int] | None = None
    busy = [False, False]
    for place, side in enumerate((bench.base, bench.head) if bench else ()):
        for reading in (side.health.get("before"), side.health.get("after")) if side else ():
            load, cores = ((reading or {}).get(name) for name in ("load", "cores"))
            if not isinstance(load, int | float) or not isinstance(cores, int) or load <= BUSY_LOAD * cores:
                continue
            busy[place] = True
            worst = max(worst or (0.0, cores), (float(load), cores))
    return BusyHost(*worst, *busy) if worst else None


def find_cause(session: Session, settings: Settings, repository: RepositoryRow, detail: RegressionDetail) -> CauseView:
    """Collects the evidence for the cause of a regression."""
    row = detail.regression
    evidence = read_evidence(session, row.id)
    return CauseView(
        sources=read_source_diff(settings, repository, row.operator, row.base_sha, row.head_sha),
        code=evidence.code,
        launched=evidence.launched,
        kernels=align_sides(session, detail),
        bench=evidence.bench,
        circumstances=list_circumstances(evidence.bench),
        errors=evidence.errors,
    )


def align_sides(session: Session, detail: RegressionDetail) -> Alignment | None:
    """The trace of the head compared with the base's; None without both."""
    if detail.base_trace_id is None or detail.head_trace_id is None:
        return None
    base, head = read_trace(session, detail.base_trace_id), read_trace(session, detail.head_trace_id)
    return align_traces(base, head) if base and head else None


def list_circumstances(bench: BenchEvidence | None) -> list[Circumstance]:
    """What both benchmarks read of their host."""
    if bench is None:
        return []
    sides: list[Mapping[str, Any]] = [
        (side.health.get(when) or {}) if side else {}
        for side in (bench.base, bench.head)
        for when in ("before", "after")
    ]
    names = dict.fromkeys(name for side in sides for name in side)
    return [Circumstance(name, *(side.get(name) for side in sides)) for name in names]
