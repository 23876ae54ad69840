"""The list of traces, one trace with its timeline and tables, and the comparison of two traces."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Response

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


@router.get("/traces")
def traces(
    page: Page,
    operator: Text = None,
    variant: Text = None,
    device: Text = None,
    commit: Text = None,
    submission: Chosen = None,
    before: Before = None,
) -> Response:
    """Traces of the repository, newest first."""
    if page.repository is None:
        return page.page("welcome.html")
    filters: dict[str, Any] = {
        "operator": operator or None,
        "variant": variant or None,
        "device": device or None,
        "submission": submission,
    }
    sha = commit.strip().lower() if commit else None
    is_sha = sha is None or re.fullmatch("[0-9a-f]{4,40}", sha) is not None
    chosen = TraceFilter(page.repository.id, **filters, commit=sha)
    addressed = filters | {"repository": page.repository.name, "commit": sha if is_sha else None, "before": before}
    operators = list_operators(page.session, page.repository.id)
    return page.page(
        "traces.html",
        json=query("/traces", **addressed),
        csv=query("/api/v1/traces.csv", **addressed),
        survey=query("/api/v1/traces/survey.csv", **addressed),
        traces=list_traces(page.session, chosen, before) if is_sha else NO_TRACES,
        filters=filters | {"commit": commit},
        is_sha=is_sha,
        before=before,
        operators=[row.name for row in operators],
        variants=sorted({name for row in operators for name in row.variants}, key=variant_order),
        devices=list_devices(page.session),
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
    timelines = [_timeline(page, trace, None) for trace in (left, right) if trace is not None]
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
    timeline = _timeline(page, detail, None if call is None else call - 1)
    return page.page(
        "trace.html",
        json=f"/traces/{trace_id}",
        trace=detail,
        summary=detail.summary,
        on_gpu=any("grid" in kernel.details for kernel in detail.kernels),
        viewer=viewer,
        timeline=timeline,
        picture=timeline_svg(timeline) if timeline else None,
        others=list_related_traces(page.session, trace_id),
        memory=memory_figure(memory) if memory else None,
    )


def _timeline(page: Scope, trace: TraceDetail, call: int | None) -> Timeline | None:
    """One call of a trace; None where its file is too large to draw, or holds nothing that can be drawn."""
    file = load_trace(page.session, trace.id)
    return None if file is None else read_timeline(file, call)


def _find(page: Page, trace_id: int) -> TraceDetail:
    detail = read_trace(page.session, trace_id)
    if detail is None:
        raise not_found("trace", trace_id)
    return detail
