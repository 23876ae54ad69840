"""Reads what a trace is and its kernel table; its bytes are streamed by db.traces."""

from __future__ import annotations

from db.reads.query import Session, fetch, fetch_one
from db.reads.rows import KernelView, TraceDetail

MAX_KERNELS = 500
"""Rows that a kernel table shows, by total time."""

_TRACE = """
SELECT traces.id, repositories.name AS repository, operators.name AS operator, variants.name AS variant, cases.key AS case,
       commits.sha AS commit_sha, devices.key AS device_key, size, compressed_size, sha256, runtime_calls, traces.created_at
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


def read_trace(session: Session, trace_id: int) -> TraceDetail | None:
    """A trace with the most expensive rows of its kernel table; None when it is unknown."""
    kernels = fetch(session, KernelView, _KERNELS, id=trace_id, limit=MAX_KERNELS)
    return fetch_one(session, lambda **fields: TraceDetail(kernels=kernels, **fields), _TRACE, id=trace_id)
