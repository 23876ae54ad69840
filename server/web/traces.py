"""The list of traces, one trace with its timeline and tables, and the comparison of two traces."""

from __future__ import annotations

import gzip
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from warpwatch.contract.commit_ids import short_sha
from warpwatch.db.reads.code import RepositoryRow, list_operators
from warpwatch.db.reads.devices import list_devices
from warpwatch.db.reads.query import Page
from warpwatch.db.reads.query import Page as Rows
from warpwatch.db.traces import (
    KernelView,
    TraceDetail,
    TraceFilter,
    TraceListRow,
    iter_trace,
    iter_trace_json,
    list_related_traces,
    list_traces,
    read_report,
    read_trace,
)
from warpwatch.server.explanation.alignment import AlignedRow, Alignment, align_traces
from warpwatch.server.explanation.runtime_calls import MOST_FILES, RuntimeCallRow, launches_of, read_runtime_calls
from warpwatch.server.explanation.runtime_calls import in_all_traces as add_up_calls
from warpwatch.server.explanation.survey import IdleRow, SurveyRow, in_all_traces, read_idle, read_survey
from warpwatch.server.explanation.timeline import read_timeline
from warpwatch.server.explanation.trace_files import (
    MOST_BYTES,
    TraceFault,
    TraceFileError,
    load_trace,
    merge_traces,
    open_trace,
)
from warpwatch.server.explanation.traced_pairs import PictureState, contradicts, find_paired_times, pair_calls
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.figures.timelines import pair_svg, timeline_svg, waterfall_svg
from warpwatch.server.figures.trace_charts import memory_figure
from warpwatch.server.http.downloads import content_disposition
from warpwatch.server.http.problems import Problem, documented, not_found
from warpwatch.server.http.service import Before, Db, Limit, database_of, repository_or_404
from warpwatch.server.reports.formats import variant_order
from warpwatch.server.verdicts.statements import NO_DATA, state_rounds
from warpwatch.server.web.choices import Text
from warpwatch.server.web.code import RepositoryName
from warpwatch.server.web.render import PageScope, Scope, query

router = APIRouter()
Chosen = Annotated[int | None, Query(ge=1, le=2**62)]
NO_TRACES: Rows[TraceListRow] = Rows([], None)


def _filters(
    page: PageScope,
    operator: Text = None,
    variant: Text = None,
    device: Text = None,
    commit: Text = None,
    submission: Chosen = None,
) -> tuple[dict[str, Any], TraceFilter | None]:
    """The filters that a list of traces is asked for, and what they choose; None where the commit is no SHA."""
    sha = commit.strip().lower() if commit else None
    filters: dict[str, Any] = {
        "operator": operator or None,
        "variant": variant or None,
        "device": device or None,
        "submission": submission,
        "commit": sha,
    }
    is_sha = sha is None or re.fullmatch("[0-9a-f]{4,40}", sha) is not None
    repository = page.repository
    return filters, TraceFilter(repository.id, **filters) if repository is not None and is_sha else None


Filters = Annotated[tuple[dict[str, Any], TraceFilter | None], Depends(_filters)]


@router.get("/runs/traces")
def traces(page: PageScope, asked: Filters, before: Before = None, view: Literal["launches"] | None = None) -> Response:
    """Traces of the repository, newest first; in the view `launches` all that they launch and call."""
    if page.repository is None:
        return page.page("welcome.html")
    filters, chosen = asked
    if view is not None:
        return _survey(page, page.repository, filters, chosen)
    addressed = filters | {"repository": page.repository.name, "before": before}
    if chosen is None:
        addressed["commit"] = None
    operators = list_operators(page.session, page.repository.id)
    return page.page(
        "traces.html",
        json=query("/traces", **addressed),
        csv=query("/api/v1/traces.csv", **addressed),
        survey=query("/runs/traces", **{**addressed, "before": None}, view="launches"),
        traces=list_traces(page.session, chosen, before) if chosen else NO_TRACES,
        filters=filters,
        is_sha=chosen is not None,
        before=before,
        operators=[row.name for row in operators],
        variants=sorted({name for row in operators for name in row.variants}, key=variant_order),
        devices=list_devices(page.session),
    )


def _survey(page: Scope, repository: RepositoryRow, filters: dict[str, Any], chosen: TraceFilter | None) -> Response:
    """Launches, idle gaps and CUDA calls of the newest traces that match: of an operator, a commit or a submission."""
    addressed = filters | {"repository": repository.name}
    listed = list_traces(page.session, chosen, None, MOST_FILES) if chosen else NO_TRACES
    addresses = {name: query(f"/api/v1/traces/{name}.csv", **addressed) for name in ("survey", "idle", "runtime-calls")}
    return page.page(
        "survey.html",
        json=query("/traces/survey", **addressed) if chosen else None,
        csv=addresses,
        traces=listed,
        filters=filters,
        launches=in_all_traces(read_survey(page.session, listed.items)),
        idle=read_idle(page.session, listed.items),
        calls=add_up_calls(read_runtime_calls(page.session, listed.items)),
    )


@router.get("/traces/compare")
def compare(page: PageScope, a: Chosen = None, b: Chosen = None) -> Response:
    """Compares trace `b` with trace `a`; without `b`, offers the traces to choose from."""
    left = _find(page, a) if a is not None else None
    right = _find(page, b) if b is not None else None
    either = left or right
    if either is not None:
        page.moved(either.repository)
    address = query("/traces/compare", a=a, b=b)
    pictures = _draw_both(page, left, right) if left and right else {}
    return page.page(
        "trace_compare.html",
        json=address if left and right else None,
        csv=f"/api/v1{address.replace('/compare', '/compare.csv', 1)}",
        merged=f"/api/v1{address.replace('/compare', '/compare.json.gz', 1)}",
        a=left,
        b=right,
        others=list_related_traces(page.session, either.id) if either else [],
        **{"alignment": None, "times": None, "contradiction": None} | pictures,
    )


def _draw_both(page: PageScope, a: TraceDetail, b: TraceDetail) -> dict[str, Any]:
    """Both timelines, the waterfall and what an A/B comparison of the two commits says. A picture that shows the
    opposite of the comparison is left out, and contradiction is its ratio."""
    assert page.repository is not None
    alignment = align_traces(a, b)
    times = find_paired_times(page.session, page.repository.id, a, b)
    pair = pair_calls(load_trace(page.session, a.id), load_trace(page.session, b.id), times)
    ratio = alignment.b_ns / alignment.a_ns if alignment.a_ns else None
    against = ratio if times and ratio and contradicts(ratio, times.ratio) else None
    is_drawn = pair.state == PictureState.DRAWN and pair.a is not None and pair.b is not None
    outcome = ("slower" if times.ratio > 1 else "faster") if times else ""
    return {
        "alignment": alignment,
        "times": times,
        "stated": state_rounds(NO_DATA, outcome, times.ratio if times else None, None, None),
        "contradiction": against or (pair.ratio if pair.state == PictureState.CONTRADICTING else None),
        "pair": pair_svg(pair.a, pair.b) if is_drawn and pair.a and pair.b else None,
        "waterfall": waterfall_svg(alignment) if alignment.rows and against is None else None,
    }


@router.get("/traces/{trace_id}")
def trace(page: PageScope, trace_id: int, call: Annotated[int | None, Query(ge=1, le=10_000)] = None) -> Response:
    """Our own timeline of one recorded call, and Perfetto behind a button: it is loaded from our own host and given the
    trace's address, so nothing leaves the machine."""
    detail = _find(page, trace_id)
    page.moved(detail.repository)
    file = f"{str(page.request.base_url).rstrip('/')}/api/v1/traces/{trace_id}/download.json.gz"
    viewer = f"/perfetto/#!/?mode=embedded&hideSidebar=true&url={quote(file, safe='')}"
    memory = detail.summary.get("memory")
    recording, fault = None, None
    try:
        recording = open_trace(page.session, trace_id)
    except TraceFileError as error:
        fault = error.fault
    timeline = read_timeline(recording, None if call is None else call - 1) if recording else None
    levels = {total for _, total in memory["points"]} if memory else set()
    return page.page(
        "trace.html",
        json=f"/traces/{trace_id}",
        trace=detail,
        summary=detail.summary,
        survey=detail.summary["survey"] if "survey" in detail.summary else launches_of(recording),
        on_gpu=any("grid" in kernel.details for kernel in detail.kernels),
        viewer=viewer,
        timeline=timeline,
        fault=fault,
        left_out=detail.summary.get("left_out", 0),
        picture=timeline_svg(timeline) if timeline else None,
        others=list_related_traces(page.session, trace_id),
        memory=memory_figure(memory) if memory else None,
        is_constant=len(levels) == 1,
    )


def _find(page: PageScope, trace_id: int) -> TraceDetail:
    detail = read_trace(page.session, trace_id)
    if detail is None:
        raise not_found("trace", trace_id)
    return detail


api = APIRouter(tags=["traces"])
JSON_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "A Chrome trace.", "content": {"application/json": {}}}
}
BINARY_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "A .ncu-rep file.", "content": {"application/octet-stream": {}}}
}
TraceId = Annotated[int, Query(ge=1, le=2**62)]
FewTraces = Annotated[int, Query(ge=1, le=MOST_FILES, description="Traces of the page.")]
GZIP_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "A Chrome trace, compressed with gzip.", "content": {"application/gzip": {}}}
}


ZIP_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "A zip of compressed Chrome traces.", "content": {"application/zip": {}}}
}
Name = Annotated[str | None, Query(max_length=500)]


def trace_filter(
    session: Db,
    repository: RepositoryName | None = None,
    operator: Name = None,
    variant: Name = None,
    case: Name = None,
    device: Name = None,
    commit: Annotated[str | None, Query(max_length=40, pattern="^[0-9a-f]{4,40}$")] = None,
    submission: TraceId | None = None,
) -> TraceFilter:
    repository_id = None if repository is None else repository_or_404(session, repository).id
    return TraceFilter(repository_id, operator, variant, case, device, commit, submission)


Filter = Annotated[TraceFilter, Depends(trace_filter)]


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


@api.get("/traces", responses=documented(404, 422))
def get_traces(session: Db, filters: Filter, before: Before = None, limit: Limit = 50) -> Page[TraceListRow]:
    """Traces that match all given filters, newest first. commit: a SHA or its beginning."""
    return list_traces(session, filters, before, limit)


@api.get("/traces.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_traces_csv(session: Db, filters: Filter, before: Before = None, limit: Limit = 200) -> Response:
    """The same list as CSV."""
    return csv_response(TraceListRow, list_traces(session, filters, before, limit).items, "traces")


@api.get("/traces/survey", responses=documented(404, 422))
def get_survey(session: Db, filters: Filter, before: Before = None, limit: Limit = 50) -> Page[SurveyRow]:
    """Which torch operator launches which kernel with which grid, block and registers, per call, over all traces that
    match. Paged by traces, not by rows."""
    page = list_traces(session, filters, before, limit)
    return Page(read_survey(session, page.items), page.next_before)


@api.get("/traces/survey.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_survey_csv(session: Db, filters: Filter, before: Before = None, limit: Limit = 200) -> Response:
    """The same rows as CSV."""
    return csv_response(SurveyRow, get_survey(session, filters, before, limit).items, "survey")


@api.get("/traces/idle", responses=documented(404, 422))
def get_idle(session: Db, filters: Filter, before: Before = None, limit: Limit = 50) -> Page[IdleRow]:
    """Gaps in which the device was idle between two kernels, the longest first, over all traces that match. Paged by
    traces, not by rows."""
    page = list_traces(session, filters, before, limit)
    return Page(read_idle(session, page.items), page.next_before)


@api.get("/traces/idle.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_idle_csv(session: Db, filters: Filter, before: Before = None, limit: Limit = 200) -> Response:
    """The same rows as CSV."""
    return csv_response(IdleRow, get_idle(session, filters, before, limit).items, "idle")


@api.get("/traces/runtime-calls", responses=documented(404, 422))
def get_runtime_calls(
    session: Db, filters: Filter, before: Before = None, limit: FewTraces = 20
) -> Page[RuntimeCallRow]:
    """CUDA runtime and driver calls with their time and the torch operator around them, over all traces that match
    and are not too large. Paged by traces, not by rows."""
    page = list_traces(session, filters, before, limit)
    return Page(read_runtime_calls(session, page.items), page.next_before)


@api.get("/traces/runtime-calls.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_runtime_calls_csv(session: Db, filters: Filter, before: Before = None, limit: FewTraces = 20) -> Response:
    """The same rows as CSV."""
    return csv_response(RuntimeCallRow, get_runtime_calls(session, filters, before, limit).items, "runtime-calls")


@api.get(
    "/submissions/{submission_id}/traces.zip", responses=documented(404, 422) | ZIP_ANSWER, response_class=Response
)
def download_zip(request: Request, session: Db, submission_id: int) -> StreamingResponse:
    """Every trace of a submission, compressed, named by operator, variant, case and commit."""
    if not list_traces(session, TraceFilter(submission=submission_id), limit=1).items:
        raise not_found("trace of submission", submission_id, "submit with kind profile")
    headers = content_disposition(f"submission-{submission_id}-traces.zip")
    return StreamingResponse(_zipped(request, submission_id), media_type="application/zip", headers=headers)


@api.get("/traces/compare", responses=documented(404, 422))
def compare_traces(session: Db, a: TraceId, b: TraceId) -> TraceComparison:
    """Compare two traces: kernels (torch operators on a CPU) added, removed, longer, shorter or unchanged, per call."""
    left, right = get_trace(session, a), get_trace(session, b)
    return TraceComparison(_head(left), _head(right), align_traces(left, right))


@api.get("/traces/compare.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def compare_traces_csv(session: Db, a: TraceId, b: TraceId) -> Response:
    """The aligned kernels as CSV."""
    return csv_response(AlignedRow, compare_traces(session, a, b).alignment.rows, f"traces-{a}-{b}")


@api.get("/traces/compare.json.gz", responses=documented(404, 413, 422) | GZIP_ANSWER, response_class=Response)
def download_merged(session: Db, a: TraceId, b: TraceId) -> Response:
    """Both traces in one file for Perfetto, moved so that their last recorded calls begin together."""
    heads = [get_trace(session, number) for number in (a, b)]
    files = []
    for number in (a, b):
        try:
            files.append(open_trace(session, number))
        except TraceFileError as error:
            if error.fault is TraceFault.TOO_LARGE:
                message = f"trace {number} has more than {MOST_BYTES} bytes; open each in Perfetto on its own"
                raise Problem(413, message) from error
            raise Problem(422, f"trace {number} is no Chrome trace; download it to look at it") from error
    origins = [0.0 if (timeline := read_timeline(file)) is None else timeline.origin / 1e3 for file in files]
    names = [f"{head.operator} {head.variant} {short_sha(head.commit_sha)}" for head in heads]
    merged = merge_traces(files[0], files[1], (names[0], names[1]), (origins[0], origins[1]))
    headers = content_disposition(f"traces-{a}-{b}.pt.trace.json.gz")
    return Response(gzip.compress(merged, 5), media_type="application/gzip", headers=headers)


@api.get("/traces/{trace_id}", responses=documented(404, 422))
def get_trace(session: Db, trace_id: int) -> TraceDetail:
    """The summary of a trace and its kernel table, the most expensive kernel first."""
    trace = read_trace(session, trace_id)
    if trace is None:
        raise not_found("trace", trace_id)
    return trace


@api.get("/traces/{trace_id}/kernels.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_kernels_csv(session: Db, trace_id: int) -> Response:
    """The kernel table as CSV."""
    return csv_response(KernelView, get_trace(session, trace_id).kernels, f"trace-{trace_id}-kernels")


@api.get("/traces/{trace_id}/report.ncu-rep", responses=documented(404, 422) | BINARY_ANSWER, response_class=Response)
def download_report(session: Db, trace_id: int) -> Response:
    """The .ncu-rep file, for Nsight Compute."""
    name, data = _file_name(get_trace(session, trace_id)), read_report(session, trace_id)
    if data is None:
        raise not_found("report of trace", trace_id, "profile with hardware counters on a GPU that permits them")
    headers = content_disposition(f"{name}.ncu-rep")
    return Response(data, media_type="application/octet-stream", headers=headers)


@api.get("/traces/{trace_id}/download.json", responses=documented(404, 422) | JSON_ANSWER, response_class=Response)
def download_json(request: Request, session: Db, trace_id: int) -> StreamingResponse:
    """The trace as plain JSON."""
    name = _file_name(get_trace(session, trace_id))
    headers = content_disposition(f"{name}.pt.trace.json")
    return StreamingResponse(_stream(request, trace_id, is_plain=True), media_type="application/json", headers=headers)


@api.get("/traces/{trace_id}/download.json.gz", responses=documented(404, 422) | GZIP_ANSWER, response_class=Response)
def download_gzip(request: Request, session: Db, trace_id: int) -> StreamingResponse:
    """The trace as compressed JSON, for Perfetto, chrome://tracing and TensorBoard."""
    trace = get_trace(session, trace_id)
    headers = content_disposition(f"{_file_name(trace)}.pt.trace.json.gz")
    headers["Content-Length"] = str(trace.compressed_size)
    return StreamingResponse(_stream(request, trace_id, is_plain=False), media_type="application/gzip", headers=headers)


@api.get("/traces/{trace_id}/tensorboard.zip", responses=documented(404, 422) | ZIP_ANSWER, response_class=Response)
def download_tensorboard(request: Request, session: Db, trace_id: int) -> StreamingResponse:
    """A log folder for TensorBoard and its plugin torch-tb-profiler, as a zip: unpack it, then `tensorboard --logdir`.

    The device is the worker's name.
    """
    trace = get_trace(session, trace_id)
    name = _file_name(trace)
    moment = int(trace.recorded_at.timestamp() * 1e9) if trace.recorded_at is not None else trace_id
    device = _plain(trace.device_key)
    member = f"{name}/trace-{trace_id}/{device}.{moment}.pt.trace.json.gz"
    headers = content_disposition(f"{name}-tensorboard.zip")
    return StreamingResponse(_zip_of_one(request, trace_id, member), media_type="application/zip", headers=headers)


def _zip_of_one(request: Request, trace_id: int, name: str) -> Iterator[bytes]:
    """A zip with one trace, in pieces."""
    sink = _Sink()
    with database_of(request).session() as session, zipfile.ZipFile(sink, "w") as file:
        with file.open(name, "w", force_zip64=True) as member:
            for chunk in iter_trace(session, trace_id):
                member.write(chunk)
                yield sink.taken()
        file.close()
        yield sink.taken()


def _head(trace: TraceDetail) -> TraceHead:
    return TraceHead(trace.id, trace.operator, trace.variant, trace.case, trace.commit_sha, trace.device_key)


def _stream(request: Request, trace_id: int, *, is_plain: bool) -> Iterator[bytes]:
    """Opens its own session, because the request's session closes before the body is sent."""
    with database_of(request).session() as session:
        yield from iter_trace_json(session, trace_id) if is_plain else iter_trace(session, trace_id)


class _Sink:
    """Takes what zipfile writes, until it is sent."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Does nothing; zipfile calls it."""

    def close(self) -> None:
        """Does nothing, like `flush`."""

    def taken(self) -> bytes:
        data, self.pieces = b"".join(self.pieces), []
        return data


def _zipped(request: Request, submission_id: int) -> Iterator[bytes]:
    """The zip in pieces; it holds one chunk of one trace at a time."""
    sink, before = _Sink(), None
    with database_of(request).session() as session, zipfile.ZipFile(sink, "w") as file:
        while True:
            page = list_traces(session, TraceFilter(submission=submission_id), before, limit=200)
            for row in page.items:
                # Several attempts may have recorded the same cell, so the id keeps names apart.
                with file.open(f"{_file_name(row)}-{row.id}.pt.trace.json.gz", "w", force_zip64=True) as member:
                    for chunk in iter_trace(session, row.id):
                        member.write(chunk)
                        yield sink.taken()
            if page.next_before is None:
                break
            before = page.next_before
        file.close()
        yield sink.taken()


def _file_name(trace: TraceDetail | TraceListRow) -> str:
    return _plain(f"{trace.operator}-{trace.variant}-{trace.case}-{trace.commit_sha[:12]}")


def _plain(name: str) -> str:
    return "".join(character if character.isalnum() or character in "-_.=" else "_" for character in name)
