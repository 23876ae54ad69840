"""Traces: kernel tables, comparisons, and the files, which are streamed in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from warpwatch.db.reads.traces import KernelView, TraceDetail, read_trace
from warpwatch.db.traces import iter_trace, iter_trace_json, read_report
from warpwatch.server.explanation.alignment import AlignedRow, Alignment, align_traces
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Db, database_of

router = APIRouter(tags=["traces"])
JSON_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "A Chrome trace.", "content": {"application/json": {}}}
}
BINARY_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "A .ncu-rep file.", "content": {"application/octet-stream": {}}}
}
TraceId = Annotated[int, Query(ge=1, le=2**62)]
GZIP_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "A Chrome trace, compressed with gzip.", "content": {"application/gzip": {}}}
}


@dataclass(frozen=True, slots=True)
class TraceHead:
    """Operator, variant, case, commit and device of a trace."""

    id: int
    operator: str
    variant: str
    case: str
    commit_sha: str
    device_key: str


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """Two aligned traces; differences are b − a."""

    a: TraceHead
    b: TraceHead
    alignment: Alignment


@router.get("/traces/compare", responses=documented(404, 422))
def compare_traces(session: Db, a: TraceId, b: TraceId) -> TraceComparison:
    """Compare two traces: kernels (torch operators on a CPU) added, removed, slower, faster or unchanged, per call."""
    left, right = get_trace(session, a), get_trace(session, b)
    return TraceComparison(_head(left), _head(right), align_traces(left, right))


@router.get("/traces/compare.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def compare_traces_csv(session: Db, a: TraceId, b: TraceId) -> Response:
    """The aligned kernels as CSV."""
    return csv_response(AlignedRow, compare_traces(session, a, b).alignment.rows, f"traces-{a}-{b}")


@router.get("/traces/{trace_id}", responses=documented(404, 422))
def get_trace(session: Db, trace_id: int) -> TraceDetail:
    """The summary of a trace and its kernel table, the most expensive kernel first."""
    trace = read_trace(session, trace_id)
    if trace is None:
        raise not_found("trace", trace_id)
    return trace


@router.get("/traces/{trace_id}/kernels.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_kernels_csv(session: Db, trace_id: int) -> Response:
    """The kernel table as CSV."""
    return csv_response(KernelView, get_trace(session, trace_id).kernels, f"trace-{trace_id}-kernels")


@router.get(
    "/traces/{trace_id}/report.ncu-rep", responses=documented(404, 422) | BINARY_ANSWER, response_class=Response
)
def download_report(session: Db, trace_id: int) -> Response:
    """The .ncu-rep file, for Nsight Compute."""
    name, data = _file_name(get_trace(session, trace_id)), read_report(session, trace_id)
    if data is None:
        raise not_found("report of trace", trace_id, "profile with hardware counters on a GPU that permits them")
    headers = {"Content-Disposition": f'attachment; filename="{name}.ncu-rep"'}
    return Response(data, media_type="application/octet-stream", headers=headers)


@router.get("/traces/{trace_id}/download.json", responses=documented(404, 422) | JSON_ANSWER, response_class=Response)
def download_json(request: Request, session: Db, trace_id: int) -> StreamingResponse:
    """The trace as plain JSON."""
    name = _file_name(get_trace(session, trace_id))
    headers = {"Content-Disposition": f'attachment; filename="{name}.pt.trace.json"'}
    return StreamingResponse(_stream(request, trace_id, is_plain=True), media_type="application/json", headers=headers)


@router.get(
    "/traces/{trace_id}/download.json.gz", responses=documented(404, 422) | GZIP_ANSWER, response_class=Response
)
def download_gzip(request: Request, session: Db, trace_id: int) -> StreamingResponse:
    """The trace as compressed JSON, for Perfetto, chrome://tracing and TensorBoard."""
    trace = get_trace(session, trace_id)
    headers = {
        "Content-Disposition": f'attachment; filename="{_file_name(trace)}.pt.trace.json.gz"',
        "Content-Length": str(trace.compressed_size),
    }
    return StreamingResponse(_stream(request, trace_id, is_plain=False), media_type="application/gzip", headers=headers)


def _head(trace: TraceDetail) -> TraceHead:
    return TraceHead(trace.id, trace.operator, trace.variant, trace.case, trace.commit_sha, trace.device_key)


def _stream(request: Request, trace_id: int, *, is_plain: bool) -> Iterator[bytes]:
    """Opens its own session, because the request's session closes before the body is sent."""
    with database_of(request).session() as session:
        yield from iter_trace_json(session, trace_id) if is_plain else iter_trace(session, trace_id)


def _file_name(trace: TraceDetail) -> str:
    name = f"{trace.operator}-{trace.variant}-{trace.case}-{trace.commit_sha[:9]}"
    return "".join(character if character.isalnum() or character in "-_.=" else "_" for character in name)
