"""Traces: their kernel table, and the files themselves, streamed with the memory of one chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from db.reads.rows import KernelView, TraceDetail
from db.reads.traces import read_trace
from db.traces import iter_trace, iter_trace_json
from server.problems import documented, not_found
from server.service import Db, database_of
from server.tables import CSV_ANSWER, csv_response

router = APIRouter(tags=["traces"])
JSON_ANSWER: dict[int | str, dict[str, Any]] = {200: {"description": "A Chrome trace.", "content": {"application/json": {}}}}
GZIP_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "A gzip'ed Chrome trace.", "content": {"application/gzip": {}}}
}


@router.get("/traces/{trace_id}", responses=documented(404, 422))
def get_trace(session: Db, trace_id: int) -> TraceDetail:
    """What the trace shows and its kernel table, the most expensive row first."""
    found = read_trace(session, trace_id)
    if found is None:
        raise not_found("trace", trace_id)
    return found


@router.get("/traces/{trace_id}/kernels.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_kernels_csv(session: Db, trace_id: int) -> Response:
    """The kernel table as CSV."""
    return csv_response(KernelView, get_trace(session, trace_id).kernels, f"trace-{trace_id}-kernels")


@router.get("/traces/{trace_id}/download.json", responses=documented(404, 422) | JSON_ANSWER, response_class=Response)
def download_json(request: Request, session: Db, trace_id: int) -> StreamingResponse:
    """The trace as plain JSON, unpacked while it is sent."""
    name = _file_name(get_trace(session, trace_id))
    headers = {"Content-Disposition": f'attachment; filename="{name}.json"'}
    return StreamingResponse(_stream(request, trace_id, is_plain=True), media_type="application/json", headers=headers)


@router.get("/traces/{trace_id}/download.json.gz", responses=documented(404, 422) | GZIP_ANSWER, response_class=Response)
def download_gzip(request: Request, session: Db, trace_id: int) -> StreamingResponse:
    """The trace as it is stored; Perfetto and chrome://tracing open it as it is."""
    found = get_trace(session, trace_id)
    headers = {
        "Content-Disposition": f'attachment; filename="{_file_name(found)}.json.gz"',
        "Content-Length": str(found.compressed_size),
    }
    return StreamingResponse(_stream(request, trace_id, is_plain=False), media_type="application/gzip", headers=headers)


def _stream(request: Request, trace_id: int, *, is_plain: bool) -> Iterator[bytes]:
    """A session of its own: the request's ends before the body is sent."""
    with database_of(request).session() as session:
        yield from iter_trace_json(session, trace_id) if is_plain else iter_trace(session, trace_id)


def _file_name(trace: TraceDetail) -> str:
    name = f"{trace.operator}-{trace.variant}-{trace.case}-{trace.commit_sha[:9]}"
    return "".join(character if character.isalnum() or character in "-_.=" else "_" for character in name)
