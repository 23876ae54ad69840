"""Reads what a trace is and its kernel table; its bytes are streamed by db.traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from warpwatch.db.reads.query import Session, fetch, fetch_one


@dataclass(frozen=True, slots=True)
class KernelView:
    name: str
    calls: int
    total_ns: float
    mean_ns: float
    share: float
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TraceDetail:
    id: int
    repository: str
    operator: str
    variant: str
    case: str
    commit_sha: str
    device_key: str
    size: int
    compressed_size: int
    sha256: str
    runtime_calls: dict[str, float]
    created_at: datetime
    kernels: list[KernelView]
    summary: dict[str, Any] = field(default_factory=dict)
    """What else was read from it (worker/harness/profile_summary.py); empty for traces of earlier versions."""
    has_report: bool = False
    """Whether Nsight Compute's file is there."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A trace that another can be compared with."""

    id: int
    variant: str
    case: str
    commit_sha: str
    commit_subject: str
    created_at: datetime


MAX_KERNELS = 500
"""Rows that a kernel table shows, by total time."""

_TRACE = """
SELECT traces.id, repositories.name AS repository, operators.name AS operator, variants.name AS variant,
     cases.key AS case,
       commits.sha AS commit_sha, devices.key AS device_key, size, compressed_size, sha256, runtime_calls,
            traces.created_at,
       traces.summary, report IS NOT NULL AS has_report
FROM traces
JOIN results ON results.id = traces.result_id
JOIN operators ON operators.id = results.operator_id
JOIN repositories ON repositories.id = operators.repository_id
JOIN variants ON variants.id = results.variant_id
JOIN cases ON cases.id = results.case_id
JOIN commits ON commits.id = results.commit_id
JOIN devices ON devices.id = results.device_id
WHERE traces.id = :id
"""

_KERNELS = """
SELECT name, calls, total_ns, mean_ns, share, details FROM trace_kernels
WHERE trace_id = :id ORDER BY total_ns DESC, id LIMIT :limit
"""


# The same case first, then the nearest in time: what somebody would hold a trace against.
_RELATED = """
SELECT traces.id, variants.name AS variant, cases.key AS case, commits.sha AS commit_sha, subject AS commit_subject,
     traces.created_at
FROM traces
JOIN results ON results.id = traces.result_id
JOIN results AS own ON own.id = (SELECT result_id FROM traces WHERE id = :id)
    AND own.operator_id = results.operator_id AND own.device_id = results.device_id
JOIN variants ON variants.id = results.variant_id
JOIN cases ON cases.id = results.case_id
JOIN commits ON commits.id = results.commit_id
WHERE traces.id <> :id
ORDER BY results.case_id = own.case_id DESC, results.variant_id = own.variant_id DESC, abs(traces.id - :id),
     traces.id DESC
LIMIT :limit
"""


def list_related_traces(session: Session, trace_id: int, limit: int = 60) -> list[TraceRow]:
    """Other traces of the same operator on the same device, those of the same case and variant first."""
    return fetch(session, TraceRow, _RELATED, id=trace_id, limit=limit)


def read_trace(session: Session, trace_id: int) -> TraceDetail | None:
    """A trace with the most expensive rows of its kernel table; None when it is unknown."""
    kernels = fetch(session, KernelView, _KERNELS, id=trace_id, limit=MAX_KERNELS)
    return fetch_one(session, lambda **fields: TraceDetail(kernels=kernels, **fields), _TRACE, id=trace_id)
