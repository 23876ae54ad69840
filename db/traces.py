"""Traces: metadata, kernel tables, and the bytes, which are streamed."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select, text
from sqlalchemy.orm import Session

from warpwatch.contract.messages import ProfileReply
from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError, OutcomeError
from warpwatch.db.models import TraceChunkRecord, TraceKernelRecord, TraceRecord
from warpwatch.db.reads.query import Page, fetch, fetch_one, fetch_page


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
    """Other contents of the trace (worker/harness/profile_summary.py); empty for traces of earlier versions."""
    has_report: bool = False
    """Whether Nsight Compute's file is there."""
    recorded_at: datetime | None = None
    """When the profiled run ended; created_at is later for what was imported."""
    counters: dict[str, Any] = field(default_factory=dict)
    """The energy of a call and the power meanwhile, by name, as warpwatch.contract.measurement.Counter."""


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """Which traces are listed: those that match everything given."""

    repository_id: int | None = None
    operator: str | None = None
    variant: str | None = None
    case: str | None = None
    device: str | None = None
    commit: str | None = None
    submission: int | None = None


@dataclass(frozen=True, slots=True)
class TraceListRow:
    """calls: recorded calls. device_ns: time that the device worked per call. idle_share: share of a call in which it
    was idle between its first and its last kernel. None where the trace does not tell."""

    id: int
    operator: str
    variant: str
    case: str
    commit_sha: str
    commit_subject: str
    device_key: str
    job_id: int
    submission_id: int
    compressed_size: int
    calls: int | None
    device_ns: float | None
    idle_share: float | None
    recorded_at: datetime


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
       traces.summary, report IS NOT NULL AS has_report, coalesce(runs.finished_at, traces.created_at) AS recorded_at,
       coalesce(results.details -> 'counters', jsonb_build_object()) AS counters
FROM traces
JOIN results ON results.id = traces.result_id
LEFT JOIN runs ON runs.id = results.run_id
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


_LIST = """
SELECT traces.id, operators.name AS operator, variants.name AS variant, cases.key AS case, commits.sha AS commit_sha,
       commits.subject AS commit_subject, devices.key AS device_key, runs.job_id, jobs.submission_id, compressed_size,
       CAST(traces.summary ->> 'calls' AS bigint) AS calls,
       CAST(traces.summary -> 'launch' ->> 'device_ns' AS double precision) AS device_ns,
       CAST(traces.summary -> 'gaps' ->> 'share' AS double precision) AS idle_share,
       coalesce(runs.finished_at, traces.created_at) AS recorded_at
FROM traces
JOIN results ON results.id = traces.result_id
JOIN runs ON runs.id = results.run_id
JOIN jobs ON jobs.id = runs.job_id
JOIN operators ON operators.id = results.operator_id
JOIN variants ON variants.id = results.variant_id
JOIN cases ON cases.id = results.case_id
JOIN commits ON commits.id = results.commit_id
JOIN devices ON devices.id = results.device_id
WHERE (CAST(:repository_id AS bigint) IS NULL OR operators.repository_id = :repository_id)
  AND (CAST(:operator AS text) IS NULL OR operators.name = :operator)
  AND (CAST(:variant AS text) IS NULL OR variants.name = :variant)
  AND (CAST(:case AS text) IS NULL OR cases.key = :case)
  AND (CAST(:device AS text) IS NULL OR devices.key = :device)
  AND (CAST(:commit AS text) IS NULL OR commits.sha >= :commit AND commits.sha < :commit || 'g')
  AND (CAST(:submission AS bigint) IS NULL OR jobs.submission_id = :submission)
  AND (CAST(:before AS bigint) IS NULL OR traces.id < :before)
ORDER BY traces.id DESC LIMIT :limit
"""


def list_traces(
    session: Session, trace_filter: TraceFilter, before: int | None = None, limit: int = 50
) -> Page[TraceListRow]:
    """Traces, newest first; `before` is the id of the last one of the page before."""
    return fetch_page(session, TraceListRow, _LIST, limit, **asdict(trace_filter), before=before)


def list_related_traces(session: Session, trace_id: int, limit: int = 60) -> list[TraceRow]:
    """Other traces of the same operator on the same device, those of the same case and variant first."""
    return fetch(session, TraceRow, _RELATED, id=trace_id, limit=limit)


def read_trace(session: Session, trace_id: int) -> TraceDetail | None:
    """A trace with the most expensive rows of its kernel table; None when it is unknown."""
    kernels = fetch(session, KernelView, _KERNELS, id=trace_id, limit=MAX_KERNELS)
    return fetch_one(session, lambda **fields: TraceDetail(kernels=kernels, **fields), _TRACE, id=trace_id)


def read_summaries(session: Session, trace_ids: list[int]) -> dict[int, dict[str, Any]]:
    """The summary of each trace, by id."""
    sql = "SELECT id, summary FROM traces WHERE id = ANY(:ids)"
    return {row.id: row.summary for row in session.execute(text(sql), {"ids": trace_ids})}


CHUNK_BYTES = 1 << 20


def store_trace(s: Session, result_id: int, path: Path, profile: ProfileReply) -> None:
    """Stores the gzip'ed Chrome trace at `path` with its kernel table.

    Raises OutcomeError when the file is missing or not gzip'ed.
    """
    try:
        with path.open("rb") as file:
            if file.read(2) != b"\x1f\x8b":
                raise OutcomeError(f"the trace {path.name} is not a gzip'ed file")
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            row = TraceRecord(
                result_id=result_id,
                size=profile.size,
                compressed_size=file.tell(),
                sha256=digest,
                runtime_calls=dict(profile.runtime_calls),
                summary=profile.summary,
                report=_decode_report(profile.report),
            )
            s.add(row)
            s.flush()
            file.seek(0)
            for index, chunk in enumerate(iter(lambda: file.read(CHUNK_BYTES), b"")):
                s.execute(insert(TraceChunkRecord).values(trace_id=row.id, index=index, data=chunk))
    except OSError as error:
        raise OutcomeError(f"the trace {path.name} cannot be read: {error}") from error
    kernels = [
        {
            "trace_id": row.id,
            "name": storable(kernel.name),
            "calls": kernel.calls,
            "total_ns": kernel.total_ns,
            "mean_ns": kernel.mean_ns,
            "share": kernel.share,
            "details": kernel.details,
        }
        for kernel in profile.kernels
    ]
    if kernels:
        s.execute(insert(TraceKernelRecord), kernels)


def _decode_report(text: str | None) -> bytes | None:
    """Nsight Compute's file from its base64; None for any other text, which a child or a results file may hold."""
    try:
        return b64decode(text, validate=True) if text else None
    except ValueError:
        return None


def iter_trace(s: Session, trace_id: int) -> Iterator[bytes]:
    """The gzip'ed file in chunks, one query each; NotFoundError before the first when there is no such trace."""
    if s.get(TraceRecord, trace_id) is None:
        raise NotFoundError(f"there is no trace {trace_id}")
    return _chunks(s, trace_id)


def read_report(s: Session, trace_id: int) -> bytes | None:
    """Nsight Compute's file of the same profile; None where there is none."""
    return s.scalar(select(TraceRecord.report).where(TraceRecord.id == trace_id))


def iter_trace_json(s: Session, trace_id: int) -> Iterator[bytes]:
    """The trace as plain JSON, in pieces of at most one chunk; NotFoundError before the first when there is no such
    trace."""
    return _inflated(iter_trace(s, trace_id))


def _chunks(s: Session, trace_id: int) -> Iterator[bytes]:
    index = 0
    statement = select(TraceChunkRecord.data)
    while (
        chunk := s.scalar(statement.where(TraceChunkRecord.trace_id == trace_id, TraceChunkRecord.index == index))
    ) is not None:
        yield chunk
        index += 1


def _inflated(chunks: Iterator[bytes]) -> Iterator[bytes]:
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    for chunk in chunks:
        piece = inflate.decompress(chunk, CHUNK_BYTES)
        while piece:
            yield piece
            piece = inflate.decompress(inflate.unconsumed_tail, CHUNK_BYTES)
    if not inflate.eof:
        raise gzip.BadGzipFile("the stored trace ends in the middle")
