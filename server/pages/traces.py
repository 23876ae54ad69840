"""One trace with its summary, the embedded viewer and downloads; and the comparison of two traces."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Response

from warpwatch.db.reads.traces import TraceDetail, list_related_traces, read_trace
from warpwatch.server.explanation.alignment import align_traces
from warpwatch.server.figures.trace_charts import memory_figure
from warpwatch.server.http.problems import not_found
from warpwatch.server.pages.render import Page, query

router = APIRouter()
Chosen = Annotated[int | None, Query(ge=1, le=2**62)]


@router.get("/traces/compare")
def compare(page: Page, a: Chosen = None, b: Chosen = None) -> Response:
    """Compares trace `b` with trace `a`; without `b`, offers the traces to choose from."""
    left = _find(page, a) if a is not None else None
    right = _find(page, b) if b is not None else None
    either = left or right
    if either is not None:
        page.moved(either.repository)
    address = query("/traces/compare", a=a, b=b)
    return page.page(
        "trace_compare.html",
        json=address if left and right else None,
        csv=f"/api/v1{address.replace('/compare', '/compare.csv', 1)}",
        a=left,
        b=right,
        others=list_related_traces(page.session, either.id) if either else [],
        alignment=align_traces(left, right) if left and right else None,
    )


@router.get("/traces/{trace_id}")
def trace(page: Page, trace_id: int) -> Response:
    """The viewer is loaded from our own host and given the trace's address, so nothing leaves the machine."""
    detail = _find(page, trace_id)
    page.moved(detail.repository)
    file = f"{str(page.request.base_url).rstrip('/')}/api/v1/traces/{trace_id}/download.json.gz"
    viewer = f"/perfetto/#!/?mode=embedded&hideSidebar=true&url={quote(file, safe='')}"
    memory = detail.summary.get("memory")
    return page.page(
        "trace.html",
        json=f"/traces/{trace_id}",
        trace=detail,
        summary=detail.summary,
        on_gpu=any("grid" in kernel.details for kernel in detail.kernels),
        viewer=viewer,
        others=list_related_traces(page.session, trace_id),
        memory=memory_figure(memory) if memory else None,
    )


def _find(page: Page, trace_id: int) -> TraceDetail:
    detail = read_trace(page.session, trace_id)
    if detail is None:
        raise not_found("trace", trace_id)
    return detail
