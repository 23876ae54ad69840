"""The list of traces, one trace with its timeline and tables, and the comparison of two traces."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Response

from warpwatch.db.reads.code import list_operators
from warpwatch.db.reads.devices import list_devices
from warpwatch.db.reads.query import Page as Rows
from warpwatch.db.reads.traces import (
    TraceDetail,
    TraceFilter,
    TraceListRow,
    list_related_traces,
    list_traces,
    read_trace,
)
from warpwatch.server.explanation.alignment import align_traces
from warpwatch.server.explanation.runtime_calls import MOST_FILES, launches_of, read_runtime_calls
from warpwatch.server.explanation.runtime_calls import in_all_traces as add_up_calls
from warpwatch.server.explanation.survey import in_all_traces, read_idle, read_survey
from warpwatch.server.explanation.timeline import Timeline, read_timeline
from warpwatch.server.explanation.trace_files import load_trace
from warpwatch.server.figures.formats import variant_order
from warpwatch.server.figures.timelines import pair_svg, timeline_svg, waterfall_svg
from warpwatch.server.figures.trace_charts import memory_figure
from warpwatch.server.http.problems import not_found
from warpwatch.server.http.service import Before
from warpwatch.server.pages.choices import Text
from warpwatch.server.pages.render import Page, Scope, query

router = APIRouter()
Chosen = Annotated[int | None, Query(ge=1, le=2**62)]
NO_TRACES: Rows[TraceListRow] = Rows([], None)


def _filters(
    page: Page,
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


@router.get("/traces")
def traces(page: Page, asked: Filters, before: Before = None) -> Response:
    """Traces of the repository, newest first."""
    if page.repository is None:
        return page.page("welcome.html")
    filters, chosen = asked
    addressed = filters | {"repository": page.repository.name, "before": before}
    if chosen is None:
        addressed["commit"] = None
    operators = list_operators(page.session, page.repository.id)
    return page.page(
        "traces.html",
        json=query("/traces", **addressed),
        csv=query("/api/v1/traces.csv", **addressed),
        survey=query("/traces/survey", **{**addressed, "before": None}),
        traces=list_traces(page.session, chosen, before) if chosen else NO_TRACES,
        filters=filters,
        is_sha=chosen is not None,
        before=before,
        operators=[row.name for row in operators],
        variants=sorted({name for row in operators for name in row.variants}, key=variant_order),
        devices=list_devices(page.session),
    )


@router.get("/traces/survey")
def survey(page: Page, asked: Filters) -> Response:
    """Launches, idle gaps and CUDA calls of the newest traces that match: of an operator, a commit or a submission."""
    if page.repository is None:
        return page.page("welcome.html")
    filters, chosen = asked
    addressed = filters | {"repository": page.repository.name}
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
def compare(page: Page, a: Chosen = None, b: Chosen = None) -> Response:
    """Compares trace `b` with trace `a`; without `b`, offers the traces to choose from."""
    left = _find(page, a) if a is not None else None
    right = _find(page, b) if b is not None else None
    either = left or right
    if either is not None:
        page.moved(either.repository)
    address = query("/traces/compare", a=a, b=b)
    timelines = [_timeline(page, trace) for trace in (left, right) if trace is not None]
    alignment = align_traces(left, right) if left and right else None
    return page.page(
        "trace_compare.html",
        json=address if left and right else None,
        csv=f"/api/v1{address.replace('/compare', '/compare.csv', 1)}",
        merged=f"/api/v1{address.replace('/compare', '/compare.json.gz', 1)}",
        a=left,
        b=right,
        others=list_related_traces(page.session, either.id) if either else [],
        alignment=alignment,
        pair=pair_svg(timelines[0], timelines[1]) if len(timelines) == 2 and timelines[0] and timelines[1] else None,
        waterfall=waterfall_svg(alignment) if alignment and alignment.rows else None,
    )


@router.get("/traces/{trace_id}")
def trace(page: Page, trace_id: int, call: Annotated[int | None, Query(ge=1, le=10_000)] = None) -> Response:
    """Our own timeline of one recorded call, and Perfetto behind a button: it is loaded from our own host and given the
    trace's address, so nothing leaves the machine."""
    detail = _find(page, trace_id)
    page.moved(detail.repository)
    file = f"{str(page.request.base_url).rstrip('/')}/api/v1/traces/{trace_id}/download.json.gz"
    viewer = f"/perfetto/#!/?mode=embedded&hideSidebar=true&url={quote(file, safe='')}"
    memory = detail.summary.get("memory")
    recording = load_trace(page.session, trace_id)
    timeline = read_timeline(recording, None if call is None else call - 1) if recording else None
    return page.page(
        "trace.html",
        json=f"/traces/{trace_id}",
        trace=detail,
        summary=detail.summary,
        survey=detail.summary["survey"] if "survey" in detail.summary else launches_of(recording),
        on_gpu=any("grid" in kernel.details for kernel in detail.kernels),
        viewer=viewer,
        timeline=timeline,
        picture=timeline_svg(timeline) if timeline else None,
        others=list_related_traces(page.session, trace_id),
        memory=memory_figure(memory) if memory else None,
    )


def _timeline(page: Scope, trace: TraceDetail) -> Timeline | None:
    """The last call of a trace; None where its file is too large to draw, or holds nothing that can be drawn."""
    file = load_trace(page.session, trace.id)
    return None if file is None else read_timeline(file)


def _find(page: Page, trace_id: int) -> TraceDetail:
    detail = read_trace(page.session, trace_id)
    if detail is None:
        raise not_found("trace", trace_id)
    return detail
