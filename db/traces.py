"""Stores Chrome traces: gzip'ed files of any size, in chunks; writing and reading take the memory of one chunk."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from warpwatch.contract.messages import ProfileReply
from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError, OutcomeError
from warpwatch.db.models import TraceChunkRecord, TraceKernelRecord, TraceRecord

CHUNK_BYTES = 1 << 20


def store_trace(s: Session, result_id: int, path: Path, profile: ProfileReply) -> int:
    """Stores the gzip'ed Chrome trace at `path` with its kernel table; returns its id.

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
    return row.id


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
